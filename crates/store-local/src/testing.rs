//! A store in a temporary folder, for the tests inside this crate, and a record of the statements run on its database.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rusqlite::Connection;
use rusqlite::trace::{TraceEvent, TraceEventCodes};
use selvedge_log::{Signer, Trust};
use selvedge_model::ThreadId;

use crate::core::lock;
use crate::disk::{Disk, RealDisk};
use crate::system::{SystemClock, SystemIds};
use crate::{Access, LocalStore, Options};

pub(crate) struct TestStore {
    pub(crate) folder: tempfile::TempDir,
    pem: String,
}

impl TestStore {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        LocalStore::init(folder.path(), Arc::new(RealDisk)).unwrap();
        Self { folder, pem: Signer::generate(&SystemIds).to_pem().to_string() }
    }

    /// Opens the store as another process would: only the files are shared.
    pub(crate) fn open(&self) -> LocalStore {
        self.open_on(Arc::new(RealDisk))
    }

    /// Opens it on another disk.
    pub(crate) fn open_on(&self, disk: Arc<dyn Disk>) -> LocalStore {
        let signer = Signer::from_pem(&self.pem).unwrap();
        LocalStore::open(Options {
            project: self.folder.path().to_owned(),
            access: Access::ReadWrite,
            trust: Trust::of(&[signer.public()]),
            signer: Some(signer),
            clock: Arc::new(SystemClock),
            ids: Arc::new(SystemIds),
            disk,
        })
        .unwrap()
    }
}

/// The statements that were run on the databases that a test traces.
static TRACED: Mutex<Option<HashMap<PathBuf, BTreeSet<String>>>> = Mutex::new(None);

/// Records the statements that a connection runs, if a test traces its database.
pub(crate) fn traced(mut connection: Connection) -> Connection {
    let path = connection.path().map(PathBuf::from).unwrap_or_default();
    let listen = move |event: TraceEvent<'_>| {
        if let TraceEvent::Stmt(statement, _) = event
            && let Some(statements) = lock(&TRACED).as_mut().and_then(|all| all.get_mut(&path))
        {
            statements.insert(statement.sql().into_owned());
        }
    };
    connection.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(listen)).unwrap();
    connection
}

/// The statements that any connection runs on the database of a store during `work`.
pub(crate) fn trace(store: &LocalStore, work: impl FnOnce()) -> BTreeSet<String> {
    let path = store.core.read(|connection| Ok(PathBuf::from(connection.path().unwrap_or_default()))).unwrap();
    lock(&TRACED).get_or_insert_default().insert(path.clone(), BTreeSet::new());
    work();
    lock(&TRACED).as_mut().and_then(|all| all.remove(&path)).unwrap_or_default()
}

pub(crate) fn thread(name: &str) -> ThreadId {
    ThreadId::new(name).unwrap()
}
