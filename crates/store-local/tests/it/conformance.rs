//! The suite that every store must pass.

use selvedge_log::{Signer, Trust};
use selvedge_store::conformance::Harness;
use selvedge_store::conformance::same_answers::same_answers;
use selvedge_store::conformance::support::{ScriptedClock, SeededIds};
use selvedge_store::memory::MemoryStore;
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

/// The store on PostgreSQL is compared with the same one.
#[test]
fn random_operations_have_the_same_answers_as_in_memory() {
    for seed in 1..13 {
        let ids = SeededIds::new(seed);
        let memory = MemoryStore::new(Signer::generate(&ids), Box::new(ScriptedClock::default()), Box::new(ids));
        same_answers(&memory, &Home::new().open(), seed, 150);
    }
}
