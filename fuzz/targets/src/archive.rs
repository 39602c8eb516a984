//! An archive of a thread, with any content.
//!
//! Only a log that the trusted key signed is imported, and there is only one such log.

use std::sync::{Arc, LazyLock};

use selvedge_log::Signer;
use selvedge_model::{AgentId, Batch, Changeset, Expect, Message, NewThread, Part, Reason, Role};
use selvedge_store::{Commit, Logs};
use selvedge_store_local::disk::RealDisk;
use selvedge_store_local::{Access, LocalStore, Options};
use tempfile::TempDir;

use crate::golden::{self, ConstantClock, SeededIds, THREAD, TRUST};

struct Sample {
    /// The store that archives are imported into; nothing is ever kept.
    store: LocalStore,
    /// A valid archive.
    archive: Vec<u8>,
    /// The log in it.
    log: Vec<u8>,
    _folders: [TempDir; 2],
}

static SAMPLE: LazyLock<Sample> = LazyLock::new(|| {
    let from = TempDir::new().expect("there is a temporary folder");
    let to = TempDir::new().expect("there is another");
    let source = open(&from, golden::signer(), 1);
    let agent = AgentId::new("scribe").expect("the id is well formed");
    let create = Part::new(THREAD.clone(), Expect::Absent, Changeset::creating(NewThread::of(agent)));
    source.commit(Batch::of(create)).expect("a thread can be created");
    source.put_blob(&THREAD, b"a blob").expect("a blob can be kept");
    let message = Message::text(Role::User, "an archived edge");
    let changeset = Changeset { messages: vec![message], ..Changeset::empty(Reason::UserMessage) };
    source.commit(Batch::of(Part::new(THREAD.clone(), Expect::Exact(0), changeset))).expect("it can be appended to");
    let mut archive = Vec::new();
    source.export(&THREAD, &mut archive).expect("it can be exported");
    let mut log = Vec::new();
    source.transcript(&THREAD).expect("it can be read").1.read_to_end(&mut log).expect("it can be read");
    Sample { store: open(&to, Signer::generate(&SeededIds::from(2)), 3), archive, log, _folders: [from, to] }
});

fn open(folder: &TempDir, signer: Signer, seed: u64) -> LocalStore {
    LocalStore::init(folder.path(), Arc::new(RealDisk)).expect("a store can be made");
    let options = Options {
        project: folder.path().to_owned(),
        access: Access::ReadWrite,
        signer: Some(signer),
        trust: TRUST.clone(),
        clock: Arc::new(ConstantClock),
        ids: Arc::new(SeededIds::from(seed)),
        disk: Arc::new(RealDisk),
    };
    LocalStore::open(options).expect("a store can be opened")
}

/// Verifies an archive as the dry run of an import does.
pub fn run(mut bytes: &[u8]) {
    let sample = &*SAMPLE;
    let Ok(arrived) = sample.store.import(&mut bytes, false) else { return };
    assert_eq!(arrived.thread, *THREAD);
    let log = &sample.log[..arrived.head.bytes as usize];
    assert_eq!(selvedge_log::hash::sha256(log), arrived.head.hash, "an unsigned log was accepted");
}

/// A valid archive, and one without its end.
pub fn seeds() -> Vec<Vec<u8>> {
    let archive = SAMPLE.archive.clone();
    vec![archive[..archive.len() - 1024].to_vec(), archive]
}
