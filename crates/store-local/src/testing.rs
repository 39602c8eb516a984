//! A store in a folder of its own, for the tests inside this crate, and what is asked of its database.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rusqlite::Connection;
use rusqlite::trace::{TraceEvent, TraceEventCodes};
use selvedge_log::{Signer, Trust};
use selvedge_model::ThreadId;

use crate::core::lock;
use crate::disk::RealDisk;
use crate::system::{SystemClock, SystemIds};
use crate::{Access, LocalStore, Options};

pub(crate) struct House {
    pub(crate) folder: tempfile::TempDir,
    pem: String,
}

impl House {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        LocalStore::init(folder.path(), Arc::new(RealDisk)).unwrap();
        Self { folder, pem: Signer::generate(&SystemIds).to_pem().to_string() }
    }

    /// A store as another process has it: nothing is shared but the files.
    pub(crate) fn open(&self) -> LocalStore {
        let signer = Signer::from_pem(&self.pem).unwrap();
        LocalStore::open(Options {
            project: self.folder.path().to_owned(),
            access: Access::ReadWrite,
            trust: Trust::of(&[signer.public()]),
            signer: Some(signer),
            clock: Arc::new(SystemClock),
            ids: Arc::new(SystemIds),
            disk: Arc::new(RealDisk),
        })
        .unwrap()
    }
}

/// The statements that were run on the databases that a test listens to.
static OVERHEARD: Mutex<Option<HashMap<PathBuf, BTreeSet<String>>>> = Mutex::new(None);

/// Lets a connection tell which statements it runs, if somebody listens by then.
pub(crate) fn overheard(mut connection: Connection) -> Connection {
    let path = connection.path().map(PathBuf::from).unwrap_or_default();
    let listen = move |event: TraceEvent<'_>| {
        if let TraceEvent::Stmt(statement, _) = event
            && let Some(said) = lock(&OVERHEARD).as_mut().and_then(|all| all.get_mut(&path))
        {
            said.insert(statement.sql().into_owned());
        }
    };
    connection.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(listen)).unwrap();
    connection
}

/// The statements that are run on the database of a store while `work` is done, by any of its connections.
pub(crate) fn listen(store: &LocalStore, work: impl FnOnce()) -> BTreeSet<String> {
    let path = store.core.read(|connection| Ok(PathBuf::from(connection.path().unwrap_or_default()))).unwrap();
    lock(&OVERHEARD).get_or_insert_default().insert(path.clone(), BTreeSet::new());
    work();
    lock(&OVERHEARD).as_mut().and_then(|all| all.remove(&path)).unwrap_or_default()
}

pub(crate) fn thread(name: &str) -> ThreadId {
    ThreadId::new(name).unwrap()
}
