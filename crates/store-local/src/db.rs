//! A connection to the database, and the keys whose seals on its rows are accepted.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;
use selvedge_log::Signer;
use selvedge_log::hash::Seals;
use selvedge_model::Digest;
use selvedge_store::Result;

use crate::schema::{self, Use};

/// Seals and checks the rows of one store.
#[derive(Debug)]
pub(crate) struct Sealer {
    pub(crate) seals: Seals,
    /// The user's key.
    pub(crate) key: Digest,
    /// That key and its predecessors, after key rotations.
    lineage: BTreeSet<Digest>,
    /// Whether the seals of all those keys can be checked.
    opens_all: bool,
}

impl Sealer {
    /// The sealer of a signer in the store of this id.
    pub(crate) fn new(signer: &Signer, store: &str) -> Arc<Self> {
        Arc::new(Self {
            seals: signer.seals().for_store(store),
            key: signer.fingerprint(),
            lineage: signer.lineage(),
            opens_all: signer.opens_all(),
        })
    }

    /// Whether a seal of this key can be checked at all.
    pub(crate) fn judges(&self, key: &Digest) -> bool {
        *key == self.key || (self.opens_all && self.is_ours(key))
    }

    /// Whether this is the user's key or one of its predecessors.
    pub(crate) fn is_ours(&self, key: &Digest) -> bool {
        self.lineage.contains(key)
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
    pub(crate) fn open(path: &Path, usage: Use, sealer: Option<Arc<Sealer>>) -> Result<Self> {
        Ok(Self::new(schema::open(path, usage)?, sealer))
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
