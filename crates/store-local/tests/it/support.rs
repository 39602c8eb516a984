//! A store in a temporary folder, opened as often as a test likes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use selvedge_log::writer::{self, Addition};
use selvedge_log::{Signer, Tail, Trust};
use selvedge_model::{
    AgentId, Batch, Changeset, Event, Expect, LogId, Message, NewThread, Part, Reason, Role, Status, ThreadId,
    Timestamp,
};
use selvedge_store::Commit;
use selvedge_store_local::disk::RealDisk;
use selvedge_store_local::system::{SystemClock, SystemIds};
use selvedge_store_local::{Access, LocalStore, Options};
use tempfile::TempDir;

/// A folder with a store, and the key that signs for it.
pub(crate) struct Home {
    pub(crate) folder: TempDir,
    pem: String,
}

impl Home {
    /// A fresh store.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        LocalStore::init(folder.path(), Arc::new(RealDisk)).unwrap();
        Self { folder, pem: Signer::generate(&SystemIds).to_pem().to_string() }
    }

    pub(crate) fn signer(&self) -> Signer {
        Signer::from_pem(&self.pem).unwrap()
    }

    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    pub(crate) fn trust(&self) -> Trust {
        Trust::of(&[self.signer().public()])
    }

    pub(crate) fn options(&self, access: Access) -> Options {
        options(self.folder.path(), &self.pem, access)
    }

    pub(crate) fn open(&self) -> LocalStore {
        LocalStore::open(self.options(Access::ReadWrite)).unwrap()
    }

    pub(crate) fn read_only(&self) -> LocalStore {
        LocalStore::open(self.options(Access::ReadOnly)).unwrap()
    }

    pub(crate) fn threads(&self) -> PathBuf {
        self.folder.path().join(".ai/agent/threads")
    }

    pub(crate) fn transcript(&self, thread: &ThreadId) -> PathBuf {
        self.threads().join(thread.folder()).join("transcript.jsonl")
    }
}

/// The options with which a test opens a store in `project`.
pub(crate) fn options(project: &Path, pem: &str, access: Access) -> Options {
    let signer = Signer::from_pem(pem).unwrap();
    Options {
        project: project.to_owned(),
        access,
        trust: Trust::of(&[signer.public()]),
        signer: Some(signer),
        clock: Arc::new(SystemClock),
        ids: Arc::new(SystemIds),
        disk: Arc::new(RealDisk),
    }
}

pub(crate) fn id(text: &str) -> ThreadId {
    ThreadId::new(text).unwrap()
}

pub(crate) fn birth(thread: &ThreadId) -> Batch {
    let new = NewThread::of(AgentId::new("scribe").unwrap());
    Batch::of(Part::new(thread.clone(), Expect::Absent, Changeset::creating(new)))
}

/// A log of these changesets as its writer signs them, without the checks of a store.
pub(crate) fn signed_log(signer: &Signer, thread: &ThreadId, changesets: Vec<Changeset>) -> Vec<u8> {
    let mut tail = Tail::empty(LogId::new("00112233445566778899aabbccddeeff").unwrap());
    let mut bytes = Vec::new();
    let birth = Changeset::creating(NewThread::of(AgentId::new("scribe").unwrap()));
    for changeset in std::iter::once(birth).chain(changesets) {
        let reason = changeset.reason;
        let lead = changeset.events.iter().filter(|event| matches!(event, Event::Recovery(_))).cloned().collect();
        let changeset = Changeset { events: Vec::new(), ..changeset };
        let events = writer::events(&tail, lead, changeset, Vec::new());
        let addition = Addition {
            thread_id: thread,
            events: &events,
            reason,
            run_id: None,
            parent_run_id: None,
            turn: None,
            key: None,
            epoch: 0,
            with: Vec::new(),
            status: Status::Created,
        };
        let written = writer::write(&tail, addition, signer, Timestamp::from_micros(0)).unwrap();
        bytes.extend_from_slice(&written.bytes);
        tail = written.tail;
    }
    bytes
}

pub(crate) fn says(text: &str) -> Changeset {
    Changeset { messages: vec![Message::text(Role::User, text)], ..Changeset::empty(Reason::UserMessage) }
}

/// Creates a thread and appends `texts` to it, one commit each.
pub(crate) fn thread_with(store: &LocalStore, name: &str, texts: &[&str]) -> ThreadId {
    let thread = id(name);
    store.commit(birth(&thread)).unwrap();
    for (version, text) in (0..).zip(texts) {
        store.commit(Batch::of(Part::new(thread.clone(), Expect::Exact(version), says(text)))).unwrap();
    }
    thread
}
