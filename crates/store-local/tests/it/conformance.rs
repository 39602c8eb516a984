//! The suite that every store must pass.

use selvedge_log::Trust;
use selvedge_store::conformance::Harness;
use selvedge_store_local::LocalStore;

use crate::support::Home;

impl Harness for Home {
    type Store = LocalStore;

    fn open(&self) -> LocalStore {
        Self::open(self)
    }

    fn trust(&self) -> Trust {
        Self::trust(self)
    }
}

selvedge_store::conformance_suite!(Home::new());
selvedge_store::snapshot_suite!(Home::new());
selvedge_store::backend_suite!(Home::new());
