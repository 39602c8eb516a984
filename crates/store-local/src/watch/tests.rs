use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::*;

/// One at a time: they count what the process has open, and how long they sleep.
static ALONE: Mutex<()> = Mutex::new(());
const LONG: Duration = Duration::from_secs(20);

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write(folder: &Path, name: &str) {
    let mut file = OpenOptions::new().append(true).create(true).open(folder.join(name)).unwrap();
    file.write_all(b"x").unwrap();
}

/// How long somebody slept who waited for what `work` says some time later, and how often they looked.
fn slept(watch: &Watch, folder: &Path, work: impl FnOnce(&AtomicBool) + Send) -> (Duration, u32) {
    let is_there = AtomicBool::new(false);
    let said_at = Mutex::new(None);
    let mut looks = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(120));
            work(&is_there);
            *said_at.lock().unwrap() = Some(Instant::now());
        });
        let look = || {
            looks += 1;
            Ok(is_there.load(Ordering::SeqCst))
        };
        watch.wait(folder, LONG, look).unwrap();
    });
    let said_at = said_at.into_inner().unwrap().unwrap();
    (said_at.elapsed(), looks)
}

/// The best of a few tries: the machine may be busy.
fn best(mut one: impl FnMut() -> Duration) -> Duration {
    (0..4).map(|_| one()).min().unwrap()
}

#[test]
fn what_another_process_writes_wakes_whoever_waits() {
    let _alone = alone();
    let folder = TempDir::new().unwrap();
    let watch = Watch::default();
    let quickest = best(|| {
        let began = Instant::now();
        let woken = slept(&watch, folder.path(), |is_there| {
            is_there.store(true, Ordering::SeqCst);
            write(folder.path(), "registry.db-wal");
        });
        assert!(began.elapsed() < LONG / 2, "nobody was woken");
        woken.0
    });
    assert!(quickest < Duration::from_millis(60), "it took {quickest:?}, which is no push");
}

#[test]
fn a_hint_that_comes_before_the_commit_can_be_seen_is_not_the_last_look() {
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
    assert!(quickest < Duration::from_millis(60), "it took {quickest:?} after the commit could be seen");
}

#[test]
fn a_hint_that_one_wait_was_too_short_for_is_not_lost_to_the_next() {
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
fn what_is_not_pushed_is_found_by_looking() {
    let _alone = alone();
    let folder = TempDir::new().unwrap();
    let watch = Watch::default();
    let quickest = best(|| slept(&watch, folder.path(), |is_there| is_there.store(true, Ordering::SeqCst)).0);
    assert!(quickest < LOOK_PUSHED + Duration::from_millis(200), "it took {quickest:?}");
}

#[test]
fn without_a_watcher_everybody_looks() {
    let _alone = alone();
    let folder = TempDir::new().unwrap();
    let watch = Watch::default();
    let nowhere = folder.path().join("nowhere");
    let quickest = best(|| slept(&watch, &nowhere, |is_there| is_there.store(true, Ordering::SeqCst)).0);
    assert!(matches!(*lock(&watch.watcher), Watcher::Refused));
    assert!(quickest < LOOK_ALONE * 4, "it took {quickest:?}");
}

#[test]
fn a_folder_that_goes_away_is_looked_for_instead() {
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
    assert!(quickest < LOOK_ALONE * 4, "it took {quickest:?}");
}

#[test]
fn looking_wakes_nobody_and_other_files_neither() {
    let _alone = alone();
    let folder = TempDir::new().unwrap();
    let watch = Watch::default();
    write(folder.path(), "registry.db-wal");
    let mut looks = 0;
    let look = || {
        looks += 1;
        // What reading does: opening, locking, reading.
        let file = fs::File::open(folder.path().join("registry.db-wal")).unwrap();
        file.lock_shared().unwrap();
        fs::read(folder.path().join("registry.db-wal")).unwrap();
        write(folder.path(), "registry.db-shm");
        Ok(false)
    };
    watch.wait(folder.path(), Duration::from_millis(1_600), look).unwrap();
    assert!(looks <= 6, "{looks} looks in 1.6 s");
}

#[test]
fn nothing_is_left_open_and_nobody_left_running() {
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
        // A thread gives itself its name, which may be after everybody has stopped waiting.
        let began = Instant::now();
        while threads() == before.1 && began.elapsed() < Duration::from_secs(5) {
            thread::yield_now();
        }
        assert_eq!((descriptors(), threads()), (before.0 + 1, before.1 + 1), "one for all who wait");
    }
    assert_eq!((descriptors(), threads()), before);
}
