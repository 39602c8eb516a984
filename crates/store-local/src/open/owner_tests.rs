//! What can happen while another process opens the store.

use std::sync::mpsc::channel;
use std::time::Duration;

use super::*;
use crate::testing::TestStore;

/// The file of an owner that was created and not locked yet was removed as that of a dead owner. From then on the owner counted as dead,
/// and another process took its lease over in the middle of a run.
#[test]
fn the_file_of_an_owner_that_is_not_locked_yet_stays() {
    let test_store = TestStore::new();
    let store = test_store.open();
    let layout = store.core.layout.clone();
    let owner = OwnerId::new("process-7-0123456789ab").unwrap();
    let path = layout.owner(&owner);
    let (created, is_created) = channel();
    let opening = std::thread::spawn(move || {
        let queue = disk::RealDisk.open(&layout.commit_lock(), OpenMode::Create).unwrap();
        queue.lock().unwrap();
        let file = disk::RealDisk.open(&layout.owner(&owner), OpenMode::CreateNew).unwrap();
        created.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        file.lock().unwrap();
        queue.unlock().unwrap();
        file
    });
    is_created.recv().unwrap();
    store.core.remove_dead_owners().unwrap();
    let file = opening.join().unwrap();
    assert!(path.exists());
    // Once it is dead and holds no lease, it is removed.
    drop(file);
    store.core.remove_dead_owners().unwrap();
    assert!(!path.exists());
}
