//! What Ctrl-C means in a chat: it stops the answer while there is one, and wakes the prompt while there is none.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use selvedge_model::{Cancel, Stop};

use crate::error::{Failure, Result};

/// Hears Ctrl-C for as long as the process lives.
pub(crate) struct Interrupts {
    answer: Arc<Mutex<Option<ActiveAnswer>>>,
    /// Has a byte for each Ctrl-C that no answer took.
    woken: UnixStream,
}

/// The answer that is given at the moment.
struct ActiveAnswer {
    cancel: Cancel,
    interrupts: u32,
}

impl Interrupts {
    /// Begins to listen. If `is_said`, stderr gets what the next Ctrl-C does.
    pub(crate) fn listen(is_said: bool) -> Result<Self> {
        let failed = |error: std::io::Error| Failure::io("listen on", Path::new("SIGINT"), &error);
        let (woken, mut wake) = UnixStream::pair().map_err(failed)?;
        woken.set_nonblocking(true).map_err(failed)?;
        wake.set_nonblocking(true).map_err(failed)?;
        let answer: Arc<Mutex<Option<ActiveAnswer>>> = Arc::default();
        let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT]).map_err(failed)?;
        crate::INTERRUPTS_END.store(false, Ordering::SeqCst);
        let shared = answer.clone();
        std::thread::spawn(move || {
            for _ in signals.forever() {
                match lock(&shared).as_mut() {
                    Some(answer) => answer.interrupted(is_said),
                    // A full pipe has woken the prompt already.
                    None => _ = wake.write(&[0]),
                }
            }
        });
        Ok(Self { answer, woken })
    }

    /// An answer begins: Ctrl-C stops it.
    pub(crate) fn begin(&self) -> Cancel {
        let cancel = Cancel::new();
        *lock(&self.answer) = Some(ActiveAnswer { cancel: cancel.clone(), interrupts: 0 });
        cancel
    }

    /// The answer has ended: Ctrl-C wakes the prompt.
    pub(crate) fn end(&self) {
        *lock(&self.answer) = None;
    }

    /// Readable once Ctrl-C was pressed.
    pub(crate) fn woken(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }

    /// Forgets every Ctrl-C that was pressed.
    pub(crate) fn forget(&self) {
        let mut bytes = [0; 16];
        while (&self.woken).read(&mut bytes).is_ok_and(|read| read > 0) {}
    }
}

impl ActiveAnswer {
    fn interrupted(&mut self, is_said: bool) {
        self.interrupts += 1;
        let notice = match self.interrupts {
            1 => {
                self.cancel.say(Stop::Cancelled);
                "\nstopping the answer; press Ctrl-C again to kill running tools"
            }
            2 => {
                self.cancel.say(Stop::Killed);
                "\nkilling running tools; press Ctrl-C again to exit at once"
            }
            _ => std::process::exit(130),
        };
        // With stderr gone there is no place for a notice.
        if is_said {
            _ = writeln!(anstream::stderr().lock(), "{notice}");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
