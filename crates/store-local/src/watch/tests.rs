use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::*;

/// Tests run one at a time: they count what the process has open, and measure how long they sleep.
static ALONE: Mutex<()> = Mutex::new(());
const LONG: Duration = Duration::from_secs(20);

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write(folder: &Path, name: &str) {
    let mut file = OpenOptions::new().append(true).create(true).open(folder.join(name)).unwrap();
    file.write_all(b"x").unwrap();
}

/// How long a waiter slept after `work`, which runs some time later, and how often it checked.
fn slept(watch: &Watch, folder: &Path, work: impl FnOnce(&AtomicBool) + Send) -> (Duration, u32) {
    let is_there = AtomicBool::new(false);
    let done_at = Mutex::new(None);
    let mut checks = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(120));
            work(&is_there);
            *done_at.lock().unwrap() = Some(Instant::now());
        });
        let look = || {
            checks += 1;
            Ok(is_there.load(Ordering::SeqCst))
        };
        watch.wait(folder, LONG, look).unwrap();
    });
    let done_at = done_at.into_inner().unwrap().unwrap();
    (done_at.elapsed(), checks)
}

/// The best of a few attempts: the machine may be busy.
fn best(mut one: impl FnMut() -> Duration) -> Duration {
    (0..4).map(|_| one()).min().unwrap()
}

#[test]
fn a_write_of_another_process_wakes_a_waiter() {
    let _alone = alone();
    let folder = TempDir::new().unwrap();
    let watch = Watch::default();
    let quickest = best(|| {
        let began = Instant::now();
        let woken = slept(&watch, folder.path(), |is_there| {
            is_there.store(true, Ordering::SeqCst);
            write(folder.path(), "registry.db-wal");
        });
        assert!(began.elapsed() < LONG / 2, "the waiter was not woken");
        woken.0
    });
    assert!(quickest < Duration::from_millis(60), "it took {quickest:?}, so it was found by polling");
}

#[test]
fn a_hint_that_comes_before_the_commit_is_visible_is_followed_by_another_check() {
    let _alone = alone();
    let folder = TempDir::new().unwrap();
    let watch = Watch::default();
    let quickest = best(|| {
        let woken = slept(&watch, folder.path(), |is_there| {
            write(folder.path(), "registry.db-wal");
            thread::sleep(Duration::from_millis(12));
            is_there.store(true, Ordering::SeqCst);
        });
        woken.0
    });
    assert!(quickest < Duration::from_millis(60), "it took {quickest:?} after the commit was visible");
}

#[test]
fn a_hint_at_the_end_of_one_wait_is_not_lost_for_the_next() {
    let _alone = alone();
    let folder = TempDir::new().unwrap();
    let watch = Watch::default();
    let quickest = best(|| {
        // The first wait ends between the hint and the commit.
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(20));
                write(folder.path(), "registry.db-wal");
            });
            watch.wait(folder.path(), Duration::from_millis(30), || Ok(false)).unwrap();
        });
        let visible_at = Instant::now() + Duration::from_millis(10);
        watch.wait(folder.path(), LONG, || Ok(Instant::now() >= visible_at)).unwrap();
        visible_at.elapsed()
    });
    assert!(quickest < Duration::from_millis(100), "it took {quickest:?}");
}

#[test]
fn a_commit_without_a_hint_is_found_by_polling() {
    let _alone = alone();
    let folder = TempDir::new().unwrap();
    let watch = Watch::default();
    let quickest = best(|| slept(&watch, folder.path(), |is_there| is_there.store(true, Ordering::SeqCst)).0);
    assert!(quickest < CHECK_WATCHED + Duration::from_millis(200), "it took {quickest:?}");
}

#[test]
fn without_a_watched_folder_waiters_poll() {
    let _alone = alone();
    let folder = TempDir::new().unwrap();
    let watch = Watch::default();
    let nowhere = folder.path().join("nowhere");
    let quickest = best(|| slept(&watch, &nowhere, |is_there| is_there.store(true, Ordering::SeqCst)).0);
    assert!(matches!(*lock(&watch.watcher), Watcher::Refused));
    assert!(quickest < CHECK_UNWATCHED * 4, "it took {quickest:?}");
}

#[test]
fn after_the_folder_is_removed_waiters_poll() {
    let _alone = alone();
    let outer = TempDir::new().unwrap();
    let watch = Watch::default();
    let folder = outer.path().join("threads");
    fs::create_dir(&folder).unwrap();
    slept(&watch, &folder, |is_there| {
        is_there.store(true, Ordering::SeqCst);
        fs::remove_dir(&folder).unwrap();
    });
    let quickest = best(|| slept(&watch, &folder, |is_there| is_there.store(true, Ordering::SeqCst)).0);
    assert!(quickest < CHECK_UNWATCHED * 4, "it took {quickest:?}");
}

#[test]
fn neither_reading_nor_other_files_wake_a_waiter() {
    let _alone = alone();
    let folder = TempDir::new().unwrap();
    let watch = Watch::default();
    write(folder.path(), "registry.db-wal");
    let mut checks = 0;
    let look = || {
        checks += 1;
        // What reading does: opening, locking, reading.
        let file = fs::File::open(folder.path().join("registry.db-wal")).unwrap();
        file.lock_shared().unwrap();
        fs::read(folder.path().join("registry.db-wal")).unwrap();
        write(folder.path(), "registry.db-shm");
        Ok(false)
    };
    watch.wait(folder.path(), Duration::from_millis(1_600), look).unwrap();
    assert!(checks <= 6, "{checks} checks in 1.6 s");
}

#[test]
fn no_descriptor_and_no_thread_is_left() {
    let _alone = alone();
    let count = |folder: &str, is: fn(&Path) -> bool| {
        fs::read_dir(folder).unwrap().flatten().filter(|entry| is(&entry.path())).count()
    };
    let descriptors = || {
        count("/proc/self/fd", |path| fs::read_link(path).is_ok_and(|link| link.to_string_lossy().contains("inotify")))
    };
    let threads = || {
        count("/proc/self/task", |path| {
            fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "selvedge-watch")
        })
    };
    let folder = TempDir::new().unwrap();
    let before = (descriptors(), threads());
    for _ in 0..20 {
        let watch = Arc::new(Watch::default());
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| watch.wait(folder.path(), Duration::from_millis(5), || Ok(false)).unwrap());
            }
        });
        // A thread sets its own name, which may be after all waiters have stopped.
        let began = Instant::now();
        while threads() == before.1 && began.elapsed() < Duration::from_secs(5) {
            thread::yield_now();
        }
        assert_eq!((descriptors(), threads()), (before.0 + 1, before.1 + 1), "one for all waiters");
    }
    assert_eq!((descriptors(), threads()), before);
}

/// The kernel closes the files of a killed process, also before any waiter waits.
#[test]
fn a_killed_process_that_has_its_owner_file_open_wakes_a_waiter() {
    let _alone = alone();
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("owners")).unwrap();
    let mut owner = Command::new("sh")
        .args(["-c", "exec 3>\"$0\"; echo open; exec sleep 1000"])
        .arg(folder.path().join("owners").join("process-1"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    owner.stdout.as_mut().unwrap().read_exact(&mut [0; 5]).unwrap();
    let watch = Watch::default();
    watch.wait(folder.path(), Duration::from_millis(1), || Ok(false)).unwrap();
    let freed = watch.leases_freed();
    owner.kill().unwrap();
    owner.wait().unwrap();
    let began = Instant::now();
    watch.wait(folder.path(), LONG, || Ok(watch.leases_freed() > freed)).unwrap();
    assert!(began.elapsed() < LONG / 2, "the waiter was not woken");
}
