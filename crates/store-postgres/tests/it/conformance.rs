//! The suite that every store must pass.

use selvedge_log::Trust;
use selvedge_store::conformance::Harness;
use selvedge_store_postgres::PostgresStore;

use crate::support::Home;

impl Harness for Home {
    type Store = PostgresStore;

    fn open(&self) -> PostgresStore {
        Self::open(self)
    }

    fn trust(&self) -> Trust {
        Self::trust(self)
    }
}

selvedge_store::conformance_suite!(Home::new());
selvedge_store::snapshot_suite!(Home::new());
selvedge_store::backend_suite!(Home::new());
