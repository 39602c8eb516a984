//! A connection to the database, and the keys whose seals on its rows are accepted.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;
use selvedge_log::Signer;
use selvedge_log::hash::Seals;
use selvedge_model::Digest;
use selvedge_store::Result;

use crate::schema::{self, ConnectionMode};

/// Seals and checks the rows of one store.
#[derive(Debug)]
pub(crate) struct Sealer {
    pub(crate) seals: Seals,
    /// The user's key.
    pub(crate) key: Digest,
}

impl Sealer {
    /// The sealer of a signer in the store of this id.
    pub(crate) fn new(signer: &Signer, store: &str) -> Arc<Self> {
        Arc::new(Self { seals: signer.seals().for_store(store), key: signer.fingerprint() })
    }
}

/// A connection to the database of a store.
pub(crate) struct Db {
    connection: Connection,
    /// Without a key nothing is sealed and rows are not checked: such a store is read-only.
    sealer: Option<Arc<Sealer>>,
}

impl Db {
    pub(crate) fn new(connection: Connection, sealer: Option<Arc<Sealer>>) -> Self {
        Self { connection, sealer }
    }

    /// Opens the database of a store.
    pub(crate) fn open(path: &Path, usage: ConnectionMode, sealer: Option<Arc<Sealer>>) -> Result<Self> {
        Ok(Self::new(schema::open(path, usage)?, sealer))
    }

    /// Opens the database that is to be replaced, whatever its schema says.
    pub(crate) fn open_old(path: &Path, sealer: Option<Arc<Sealer>>) -> Result<Self> {
        Ok(Self::new(schema::open_misshapen(path, ConnectionMode::Read)?, sealer))
    }

    pub(crate) fn sealer(&self) -> Option<&Sealer> {
        self.sealer.as_deref()
    }

    pub(crate) fn seals(&self) -> Option<&Seals> {
        self.sealer.as_ref().map(|sealer| &sealer.seals)
    }

    /// Closes the connection, and returns a failure to do so.
    pub(crate) fn close(self) -> Result<()> {
        self.connection.close().map_err(|(_, error)| schema::database(error))
    }
}

impl Deref for Db {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}
