//! What a handle does in the background: it renews its owner's row, and tells other processes what happened.
//!
//! A notification inside a commit would serialize all commits of the database, so it follows the commit, on a connection that all
//! commits of the handle share; many commits make one notification. If it is lost, followers find the commit when they look again.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use selvedge_model::OwnerId;
use selvedge_store::Result;

use crate::core::Core;
use crate::error::Failure;
use crate::pool::Pool;

/// What other processes are told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) commits: bool,
    pub(crate) requests: bool,
    pub(crate) leases: bool,
}

/// The background thread of a handle.
pub(crate) struct Pulse {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Whether the owner's row is there.
    is_registered: Mutex<bool>,
}

struct Shared {
    pool: Arc<Pool>,
    owner: OwnerId,
    /// How long the leases of this owner stand without a renewal.
    lease: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    told: Told,
    renews: bool,
    is_over: bool,
}

impl Pulse {
    pub(crate) fn new(pool: Arc<Pool>, owner: OwnerId, lease: Duration) -> Self {
        let shared = Arc::new(Shared { pool, owner, lease, state: Mutex::default(), changed: Condvar::new() });
        Self { shared, thread: Mutex::default(), is_registered: Mutex::default() }
    }

    /// Tells other processes, soon.
    pub(crate) fn tell(&self, told: Told) {
        let mut state = self.shared.state();
        state.told.commits |= told.commits;
        state.told.requests |= told.requests;
        state.told.leases |= told.leases;
        drop(state);
        self.start();
        self.shared.changed.notify_all();
    }

    /// Makes the owner known and keeps it alive from now on.
    pub(crate) fn register(&self, core: &Core) -> Result<()> {
        let mut is_registered = self.is_registered.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_registered {
            return Ok(());
        }
        self.shared.renew(&core.host)?;
        // Those that are long dead and hold nothing; if that fails, the next worker does it.
        _ = self.shared.forget_dead();
        *is_registered = true;
        drop(is_registered);
        self.shared.state().renews = true;
        self.start();
        Ok(())
    }

    /// Ends the thread, after it has told what is left; then the owner is dead.
    pub(crate) fn end(&self) {
        self.shared.state().is_over = true;
        self.shared.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        _ = thread.map(JoinHandle::join);
        let is_registered = *self.is_registered.lock().unwrap_or_else(PoisonError::into_inner);
        let sql = "UPDATE owners SET alive_until = clock_timestamp() - interval '1 second' WHERE owner = $1";
        let buried = self.shared.pool.get().and_then(|mut connection| {
            if is_registered {
                connection.execute(sql, &[&self.shared.owner.as_str()])?;
            }
            Ok(())
        });
        // If that fails, its time ends by itself.
        if buried.is_ok() && is_registered {
            _ = self.shared.notify(Told { leases: true, ..Told::default() });
        }
    }

    fn start(&self) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() && !self.shared.state().is_over {
            let shared = self.shared.clone();
            // Without it, followers poll and leases end: both are correct.
            *thread = thread::Builder::new().name("selvedge-pulse".to_owned()).spawn(move || shared.beat()).ok();
        }
    }
}

impl Shared {
    fn beat(&self) {
        let every = self.lease / 4;
        let mut renewed = Instant::now();
        let mut state = self.state();
        loop {
            let told = std::mem::take(&mut state.told);
            if told != Told::default() {
                drop(state);
                // Followers look again by themselves.
                _ = self.notify(told);
                state = self.state();
                continue;
            }
            if state.is_over {
                return;
            }
            if state.renews && renewed.elapsed() >= every {
                drop(state);
                if self.renew_existing().is_ok() {
                    renewed = Instant::now();
                } else {
                    thread::sleep(every / 8);
                }
                state = self.state();
                continue;
            }
            let left = every.saturating_sub(renewed.elapsed()).max(Duration::from_millis(1));
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn notify(&self, told: Told) -> Result<(), Failure> {
        let mut text = String::new();
        for (letter, is_told) in [('c', told.commits), ('r', told.requests), ('l', told.leases)] {
            text.extend(is_told.then_some(letter));
        }
        let channel = self.pool.address().channel();
        self.pool.get()?.execute("SELECT pg_notify($1, $2)", &[&channel, &text]).map(drop)
    }

    fn renew(&self, host: &str) -> Result<(), Failure> {
        let sql = "INSERT INTO owners (owner, host, alive_until) VALUES ($1, $2, clock_timestamp() + $3::bigint * interval '1 millisecond') \
                   ON CONFLICT (owner) DO UPDATE SET alive_until = excluded.alive_until";
        let lease = i64::try_from(self.lease.as_millis()).unwrap_or(i64::MAX);
        self.pool.get()?.execute(sql, &[&self.owner.as_str(), &host, &lease]).map(drop)
    }

    fn forget_dead(&self) -> Result<(), Failure> {
        let sql = "DELETE FROM owners WHERE alive_until < clock_timestamp() - interval '7 days' \
                   AND NOT EXISTS (SELECT 1 FROM threads WHERE threads.owner = owners.owner)";
        self.pool.get()?.execute(sql, &[]).map(drop)
    }

    fn renew_existing(&self) -> Result<(), Failure> {
        let sql = "UPDATE owners SET alive_until = clock_timestamp() + $2::bigint * interval '1 millisecond' WHERE owner = $1";
        let lease = i64::try_from(self.lease.as_millis()).unwrap_or(i64::MAX);
        self.pool.get()?.execute(sql, &[&self.owner.as_str(), &lease]).map(drop)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
