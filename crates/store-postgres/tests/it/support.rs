//! A store of a test: a schema of its own on a server that the test started or shares.

use std::sync::Arc;
use std::time::Duration;

use selvedge_log::{Signer, Trust};
use selvedge_store::conformance::support::{ScriptedClock, SeededIds};
use selvedge_store_postgres::{LEASE, Options, PostgresStore, test_server};

/// A store, and the key that signs it.
pub(crate) struct Home {
    pub(crate) address: String,
    pub(crate) ids: Arc<SeededIds>,
    pub(crate) key: String,
    pub(crate) lease: Duration,
}

impl Home {
    /// A store on the server that all tests share.
    pub(crate) fn new() -> Self {
        Self::at(test_server::schema(test_server::shared()))
    }

    /// A store at an address.
    pub(crate) fn at(address: String) -> Self {
        let ids = Arc::new(SeededIds::new(23));
        let key = Signer::generate(&*ids).to_pem().to_string();
        PostgresStore::init(&address, None, &*ids).unwrap();
        Self { address, ids, key, lease: LEASE }
    }

    /// The same keys, and another address.
    pub(crate) fn with_address(&self, address: String) -> Self {
        Self { address, ids: self.ids.clone(), key: self.key.clone(), lease: self.lease }
    }

    pub(crate) fn signer(&self) -> Signer {
        Signer::from_pem(&self.key).unwrap()
    }

    pub(crate) fn trust(&self) -> Trust {
        Trust::of(&[self.signer().public()])
    }

    pub(crate) fn options(&self) -> Options {
        Options {
            address: self.address.clone(),
            password: None,
            signer: Some(self.signer()),
            trust: self.trust(),
            clock: Arc::new(ScriptedClock::default()),
            ids: self.ids.clone(),
            lease: self.lease,
            host: "test".to_owned(),
        }
    }

    pub(crate) fn open(&self) -> PostgresStore {
        PostgresStore::open(self.options()).unwrap()
    }
}
