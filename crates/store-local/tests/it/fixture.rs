//! Stores written by earlier versions, in `tests/fixtures/store-FORMAT`, and how they were written.
//!
//! A fixture is the folder of all threads, as `threads`, beside the key that signed it. It is copied before it is opened.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use selvedge_log::Signer;
use selvedge_model::account::Posting;
use selvedge_model::id::ReservationId;
use selvedge_model::message::Block;
use selvedge_model::op::Op;
use selvedge_model::path::Path as StatePath;
use selvedge_model::{
    AgentId, Batch, Changeset, CommitKey, Expect, Message, MessageId, Money, Part, Patch, Reason, Role, RunId, RunMeta,
    RunStatus, ThreadId,
};
use selvedge_store::Commit;
use selvedge_store_local::disk::RealDisk;
use selvedge_store_local::system::SystemIds;
use selvedge_store_local::{Access, LocalStore, Options};
use tempfile::TempDir;

use crate::support::{birth, id, options, says, thread_with};

/// The folder of a fixture.
pub(crate) fn folder(format: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/store-{format}"))
}

/// A copy of a fixture, to be opened and changed.
pub(crate) struct FixtureCopy {
    pub(crate) folder: TempDir,
    pub(crate) pem: String,
}

impl FixtureCopy {
    /// A copy of the store of this format.
    pub(crate) fn of(format: u32) -> Self {
        let source = folder(format);
        let folder = tempfile::tempdir().unwrap();
        let kept = Self { folder, pem: fs::read_to_string(source.join("private_key.pem")).unwrap() };
        copy(&source.join("threads"), &kept.threads());
        // Version control does not keep empty folders.
        fs::create_dir_all(kept.threads().join("owners")).unwrap();
        kept
    }

    pub(crate) fn project(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn threads(&self) -> PathBuf {
        self.folder.path().join(".ai/agent/threads")
    }

    pub(crate) fn options(&self, access: Access) -> Options {
        options(self.project(), &self.pem, access)
    }

    pub(crate) fn read_only(&self) -> LocalStore {
        LocalStore::open(self.options(Access::ReadOnly)).unwrap()
    }
}

/// Copies a folder and all below it.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

/// Not a test by itself: writes the fixture of the current format to the folder in `SELVEDGE_WRITE_FIXTURE`.
#[test]
fn write_the_fixture_of_the_current_format() {
    let Some(target) = std::env::var_os("SELVEDGE_WRITE_FIXTURE").map(PathBuf::from) else { return };
    let project = tempfile::tempdir().unwrap();
    LocalStore::init(project.path(), Arc::new(RealDisk)).unwrap();
    let signer = Signer::generate(&SystemIds);
    let store = LocalStore::open(options(project.path(), &signer.to_pem(), Access::ReadWrite)).unwrap();
    write_threads(&store);
    store.close().unwrap();
    fs::create_dir_all(&target).unwrap();
    fs::write(target.join("private_key.pem"), signer.to_pem().as_bytes()).unwrap();
    fs::write(target.join("public_key.pem"), signer.public().to_pem()).unwrap();
    copy(&project.path().join(".ai/agent/threads"), &target.join("threads"));
}

/// Two threads, one batch over both, a patch, a run, a blob, a commit under a key, a budget account, a tombstone.
fn write_threads(store: &LocalStore) {
    let ann = thread_with(store, "ann-0123456789ab", &["What is a selvedge?"]);
    let bob = thread_with(store, "bob-ba9876543210", &["hello"]);
    let commit = |part: Part| store.commit(Batch::of(part)).unwrap();
    let part = |thread: &ThreadId, changeset| Part::new(thread.clone(), Expect::Any, changeset);
    let started = RunMeta::started(AgentId::new("scribe").unwrap(), "user");
    let run = |meta: &RunMeta, reason| Changeset {
        run_id: Some(RunId::new("r1").unwrap()),
        run_meta: Some(meta.clone()),
        ..Changeset::empty(reason)
    };
    let answer = Changeset {
        messages: vec![Message::text(Role::Assistant, "An edge.").with_id(MessageId::new("m2").unwrap())],
        patches: vec![Patch::new(vec![Op::Set { path: StatePath::keys(["answered"]), value: true.into() }])],
        ..run(&started, Reason::AssistantTurnCommitted)
    };
    store.commit(Batch::of(part(&ann, answer)).with_key(CommitKey::new("k1").unwrap())).unwrap();
    let blob = store.put_blob(&ann, b"what may have to be forgotten").unwrap();
    let image = Block::Image { blob, media_type: "text/plain".to_owned() };
    let shown = Message { content: vec![image], ..Message::text(Role::User, "") };
    commit(part(&ann, Changeset { messages: vec![shown], ..Changeset::empty(Reason::UserMessage) }));
    let both = [&ann, &bob].map(|thread| part(thread, says("to both")));
    store.commit(Batch { parts: both.to_vec(), ..Batch::of(both[0].clone()) }).unwrap();
    let account = ann.clone();
    let reservation = ReservationId::new("turn-1").unwrap();
    let money = |nanos| Money::from_nanos(nanos).unwrap();
    let postings = vec![
        Posting::Open { account: account.clone(), parent: None, max: Some(money(1_000_000_000)) },
        Posting::Reserve { account, reservation, amount: money(250_000_000), child: None },
    ];
    commit(Part { postings, ..part(&ann, Changeset::empty(Reason::Reserved)) });
    let done = RunMeta { status: RunStatus::Done, termination_code: Some("completed".to_owned()), ..started };
    commit(part(&ann, run(&done, Reason::RunFinished)));
    store.commit(birth(&id("gone-00000000000f"))).unwrap();
    store.delete(&id("gone-00000000000f")).unwrap();
}
