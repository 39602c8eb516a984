//! Watching a folder with inotify: one descriptor, one thread.

use std::io::{self, PipeReader, PipeWriter};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::Bell;

/// The files that every commit writes to: SQLite's write-ahead log, and the database when it is replaced.
const WATCHED: [&[u8]; 2] = [b"registry.db-wal", b"registry.db"];
/// For how long the events of one commit are collected.
const GATHER: Duration = Duration::from_millis(1);
/// The flags that say that the folder is not watched any more.
const GONE: ReadFlags = ReadFlags::IGNORED.union(ReadFlags::UNMOUNT).union(ReadFlags::MOVE_SELF);

/// The thread that watches; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Thread {
    bell: Arc<Bell>,
    /// Closing it wakes the thread.
    end: Option<PipeWriter>,
    handle: Option<JoinHandle<()>>,
}

/// Watches a folder, if the system allows it.
pub(super) fn start(folder: &Path, bell: &Arc<Bell>) -> Option<Thread> {
    let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
    let flags = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::MOVE_SELF;
    inotify::add_watch(&events, folder, flags | WatchFlags::ONLYDIR).ok()?;
    let (ended, end) = io::pipe().ok()?;
    let theirs = bell.clone();
    let watch = move || {
        let watching = Watching { events, ended, bell: &theirs };
        watching.watch();
        theirs.set_watched(false);
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
    bell: &'a Bell,
}

impl Watching<'_> {
    /// Rings for every commit until the store is closing, or the folder was removed.
    fn watch(&self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        while self.bell.has_waiters() {
            let mut both = [PollFd::new(&self.events, PollFlags::IN), PollFd::new(&self.ended, PollFlags::IN)];
            match poll(&mut both, None) {
                Err(Errno::INTR) => continue,
                Err(_) => return,
                Ok(_) if !both[1].revents().is_empty() => return,
                Ok(_) => {}
            }
            match self.read(&mut buffer) {
                Ok(true) => self.bell.ring(),
                Ok(false) => {}
                Err(Gone) => return self.bell.ring(),
            }
            thread::sleep(GATHER);
        }
    }

    /// Whether any of the events may be a commit.
    fn read(&self, buffer: &mut [MaybeUninit<u8>]) -> Result<bool, Gone> {
        let mut reader = Reader::new(&self.events, buffer);
        let mut is_commit = false;
        loop {
            match reader.next() {
                Ok(event) if event.events().intersects(GONE) => return Err(Gone),
                // An event without a name means that the queue overflowed.
                Ok(event) => {
                    is_commit |= event.file_name().is_none_or(|name| WATCHED.contains(&name.to_bytes()));
                }
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return Ok(is_commit),
                Err(_) => return Err(Gone),
            }
        }
    }
}

/// The folder can't be watched any more.
struct Gone;
