//! The in-memory store fulfils the contracts, and no case of the suite is forgotten.

use std::fs;
use std::path::Path;

use selvedge_log::{Signer, Trust};
use selvedge_store::conformance::Harness;
use selvedge_store::conformance::support::{ScriptedClock, SeededIds};
use selvedge_store::memory::MemoryStore;

struct Memory {
    first: MemoryStore,
    trust: Trust,
}

impl Harness for Memory {
    type Store = MemoryStore;

    fn open(&self) -> MemoryStore {
        self.first.another()
    }

    fn trust(&self) -> Trust {
        self.trust.clone()
    }
}

fn memory(clock: ScriptedClock) -> Memory {
    let ids = SeededIds::new(1);
    let signer = Signer::generate(&ids);
    let trust = Trust::of(&[signer.public()]);
    Memory { first: MemoryStore::new(signer, Box::new(clock), Box::new(ids)), trust }
}

selvedge_store::conformance_suite!(memory(ScriptedClock::default()));
selvedge_store::snapshot_suite!(memory(ScriptedClock::default()));
selvedge_store::backend_suite!(memory(ScriptedClock::default()));

/// The suite must not depend on the clock.
mod under_a_clock_that_runs_backwards {
    use super::*;

    selvedge_store::conformance_suite!(memory(ScriptedClock::default().backwards()));
}

/// A case that the macro does not list would never run.
#[test]
fn the_suite_lists_every_case() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/conformance");
    let suite = fs::read_to_string(folder.join("mod.rs")).unwrap();
    let mut count = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let Ok(text) = fs::read_to_string(&path) else { continue };
        for case in text.lines().filter_map(|line| line.strip_prefix("pub fn ")?.split_once("<H: Harness>")) {
            assert!(suite.contains(&format!("                {}\n", case.0)), "`{}` of {}", case.0, path.display());
            count += 1;
        }
    }
    assert!(count > 150, "only {count} cases were found");
}
