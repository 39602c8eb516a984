//! Waiting for commits, requests and freed leases of any process.
//!
//! One connection of a handle listens. It is opened with the first wait. A notification, the end of that connection, and a second without
//! either wake everyone who waits; each looks again by itself, so a lost notification costs a second and no wake-up.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use selvedge_store::Result;

use crate::pool::{Connection, Hear, Pool};

/// How often the database is asked without a notification: a worker that was killed sends none.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The waiters of one handle.
#[derive(Default)]
pub(crate) struct Watch {
    rings: Mutex<u64>,
    rung: Condvar,
    freed: AtomicU64,
    /// The connection that listens.
    listener: Mutex<Option<Connection>>,
    is_lost: AtomicBool,
    /// How many owners were dead when they were counted last.
    dead: AtomicU64,
}

impl Watch {
    pub(crate) fn leases_freed(&self) -> u64 {
        self.freed.load(Ordering::SeqCst)
    }

    /// A lease may be free.
    pub(crate) fn free(&self) {
        self.freed.fetch_add(1, Ordering::SeqCst);
        self.ring();
    }

    /// Wakes everyone who waits.
    pub(crate) fn ring(&self) {
        *self.rings() += 1;
        self.rung.notify_all();
    }

    /// Waits until `is_there`, at most this long.
    pub(crate) fn wait(
        self: &Arc<Self>,
        pool: &Pool,
        timeout: Duration,
        is_there: impl Fn() -> Result<bool>,
    ) -> Result<()> {
        let until = Instant::now().checked_add(timeout);
        loop {
            // Before looking, so that what happens in between rings.
            self.listen(pool);
            let seen = *self.rings();
            if is_there()? {
                return Ok(());
            }
            let left = until.map_or(LOOK_AGAIN, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(());
            }
            let rings = self.rings();
            let waited = self.rung.wait_timeout_while(rings, left.min(LOOK_AGAIN), |rings| *rings == seen);
            let is_quiet = waited.unwrap_or_else(PoisonError::into_inner).1.timed_out();
            if is_quiet {
                self.count_dead(pool);
            }
        }
    }

    /// Opens the connection that listens. If that fails, looking again has to do.
    fn listen(self: &Arc<Self>, pool: &Pool) {
        let mut listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_lost.swap(false, Ordering::SeqCst) {
            *listener = None;
        }
        if listener.is_some() {
            return;
        }
        let us = Arc::downgrade(self);
        let hear: Hear = Arc::new(move |payload: &str| {
            let Some(us) = us.upgrade() else { return };
            if payload.is_empty() {
                us.is_lost.store(true, Ordering::SeqCst);
            }
            if payload.is_empty() || payload.contains('l') {
                us.free();
            } else {
                us.ring();
            }
        });
        if let Ok(mut connection) = pool.connect(Some(hear))
            && connection.batch(&format!("LISTEN {}", pool.address().channel())).is_ok()
        {
            *listener = Some(connection);
        }
    }

    /// An owner whose time ended frees its leases, and nothing tells of it.
    fn count_dead(&self, pool: &Pool) {
        let sql = "SELECT count(*) FROM owners WHERE alive_until <= clock_timestamp()";
        let Ok(count) = pool.read(|connection| Ok(connection.first(sql, &[])?.map_or(0, |row| row.get::<_, i64>(0))))
        else {
            return;
        };
        let count = count.unsigned_abs();
        if self.dead.swap(count, Ordering::SeqCst) != count {
            self.free();
        }
    }

    fn rings(&self) -> MutexGuard<'_, u64> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
