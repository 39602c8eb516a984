//! Processes queue at `commit.lock` before they write. SQLite would serialize them as well, but in no order, and rebuilding and
//! quarantining rely on excluding all writers.

use std::thread;
use std::time::Duration;

use selvedge_model::{Batch, Expect, Part};
use selvedge_store::Commit;
use selvedge_store_local::disk::{Disk, OpenMode, RealDisk};

use crate::support::{Home, says, thread_with};

#[test]
fn a_commit_waits_for_the_holder_of_the_commit_lock() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    let held = RealDisk.open(&home.threads().join("commit.lock"), OpenMode::Write).unwrap();
    held.lock().unwrap();
    thread::scope(|scope| {
        let part = Part::new(thread.clone(), Expect::Exact(1), says("two"));
        let waiting = scope.spawn(|| store.commit(Batch::of(part)).unwrap());
        thread::sleep(Duration::from_millis(200));
        assert!(!waiting.is_finished(), "it did not wait");
        held.unlock().unwrap();
        assert_eq!(waiting.join().unwrap().version_of(&thread), Some(2));
    });
}
