//! The same random operations on this store and on the one in memory; a test of the local store compares that one with the same.

use selvedge_log::Signer;
use selvedge_store::conformance::same_answers::same_answers;
use selvedge_store::conformance::support::{ScriptedClock, SeededIds};
use selvedge_store::memory::MemoryStore;

use crate::support::Home;

#[test]
fn random_operations_have_the_same_answers_as_in_memory() {
    let first = std::env::var("SELVEDGE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    for seed in first..first + 12 {
        let home = Home::new();
        let ids = SeededIds::new(seed);
        let memory = MemoryStore::new(Signer::generate(&ids), Box::new(ScriptedClock::default()), Box::new(ids));
        same_answers(&memory, &home.open(), seed, 150);
    }
}
