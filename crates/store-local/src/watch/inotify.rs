//! Watching a folder with inotify: one descriptor, one thread.

use std::io::{self, PipeReader, PipeWriter};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::Wakeup;

/// The files that every commit writes to: SQLite's write-ahead log, and the database when it is replaced.
const WATCHED: [&[u8]; 2] = [b"registry.db-wal", b"registry.db"];
/// For how long the events of one commit are collected.
const GATHER: Duration = Duration::from_millis(1);
/// When the end of an owner is signalled again: its file is closed just before it is unlocked.
const AGAIN: [Timespec; 2] =
    [Timespec { tv_sec: 0, tv_nsec: 20_000_000 }, Timespec { tv_sec: 0, tv_nsec: 500_000_000 }];
/// The flags that say that the folder is not watched any more.
const GONE: ReadFlags = ReadFlags::IGNORED.union(ReadFlags::UNMOUNT).union(ReadFlags::MOVE_SELF);

/// The thread that watches; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Thread {
    bell: Arc<Wakeup>,
    /// Closing it wakes the thread.
    end: Option<PipeWriter>,
    handle: Option<JoinHandle<()>>,
}

/// Watches a folder, if the system allows it.
pub(super) fn start(folder: &Path, bell: &Arc<Wakeup>) -> Option<Thread> {
    let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
    let flags = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::MOVE_SELF;
    inotify::add_watch(&events, folder, flags | WatchFlags::ONLYDIR).ok()?;
    let closed = WatchFlags::CLOSE_WRITE | WatchFlags::DELETE | WatchFlags::ONLYDIR;
    let owners = inotify::add_watch(&events, folder.join("owners"), closed).ok();
    if owners.is_none() {
        bell.unwatch_owners();
    }
    let (ended, end) = io::pipe().ok()?;
    let theirs = bell.clone();
    let watch = move || {
        let watching = Watching { events, ended, owners, bell: &theirs };
        watching.watch();
        theirs.set_watched(false);
        theirs.unwatch_owners();
    };
    bell.set_watched(true);
    let handle = thread::Builder::new().name("selvedge-watch".to_owned()).spawn(watch);
    bell.set_watched(handle.is_ok());
    Some(Thread { bell: bell.clone(), end: Some(end), handle: Some(handle.ok()?) })
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.bell.end();
        drop(self.end.take());
        if let Some(handle) = self.handle.take() {
            // If it panicked, waiters still poll.
            _ = handle.join();
        }
    }
}

struct Watching<'a> {
    events: OwnedFd,
    ended: PipeReader,
    /// The watch on the folder of the owners.
    owners: Option<i32>,
    bell: &'a Wakeup,
}

impl Watching<'_> {
    /// Rings for every commit until the store is closing, or the folder was removed.
    fn watch(&self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut again = AGAIN.len();
        while self.bell.has_waiters() {
            let mut both = [PollFd::new(&self.events, PollFlags::IN), PollFd::new(&self.ended, PollFlags::IN)];
            match poll(&mut both, AGAIN.get(again)) {
                Err(Errno::INTR) => continue,
                Err(_) => return,
                Ok(0) => {
                    again += 1;
                    self.bell.free();
                    continue;
                }
                Ok(_) if !both[1].revents().is_empty() => return,
                Ok(_) => {}
            }
            match self.read(&mut buffer) {
                Ok(news) => {
                    if news.is_freed {
                        again = 0;
                        self.bell.free();
                    } else if news.is_commit {
                        self.bell.ring();
                    }
                }
                Err(WatchLost) => return self.bell.ring(),
            }
            thread::sleep(GATHER);
        }
    }

    /// What the events may be.
    fn read(&self, buffer: &mut [MaybeUninit<u8>]) -> Result<SeenChanges, WatchLost> {
        let mut reader = Reader::new(&self.events, buffer);
        let mut news = SeenChanges::default();
        loop {
            match reader.next() {
                Ok(event) if event.events().intersects(GONE) => return Err(WatchLost),
                // An event without a name means that the queue overflowed.
                Ok(event) => {
                    let is_owners = Some(event.wd()) == self.owners;
                    let name = event.file_name();
                    news.is_freed |= is_owners || name.is_none();
                    news.is_commit |= !is_owners && name.is_none_or(|name| WATCHED.contains(&name.to_bytes()));
                }
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return Ok(news),
                Err(_) => return Err(WatchLost),
            }
        }
    }
}

/// What was seen.
#[derive(Default)]
struct SeenChanges {
    /// There may be a commit.
    is_commit: bool,
    /// A lease may have been freed.
    is_freed: bool,
}

/// The folder can't be watched any more.
struct WatchLost;
