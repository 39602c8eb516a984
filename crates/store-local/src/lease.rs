//! Leases between processes: a row has owner and epoch, and the operating system says whether the owner is alive.
//!
//! Lease rows are not synced: a power failure ends every owner, and the epochs that matter are signed in the logs.

use std::time::Duration;

use selvedge_model::{OwnerId, ThreadId, Timestamp};
use selvedge_store::lease::{LeaseAnswer, LeaseBackend};
use selvedge_store::seal::SealedRow;
use selvedge_store::{Acquire, Error, Lease, Result};

use crate::core::{Core, Durability, io_error};
use crate::db::Db;
use crate::disk::{self, DiskFile, OpenMode};
use crate::rows::{self, Row};
use crate::sealed::unsealed;
use crate::{inbox, index};

/// The length of the time of a heartbeat on disk, padded with spaces.
const BEAT_TIME_BYTES: usize = 40;
/// The length of a heartbeat on disk: the time, its mark in hexadecimal digits, and a line feed, so that all have the same length.
const BEAT_BYTES: usize = BEAT_TIME_BYTES + 64 + 1;

/// Whether pending requests keep a lease from being released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PendingRequests {
    Refuse,
    Ignore,
}

impl LeaseBackend for Core {
    fn try_acquire(&self, thread: &ThreadId, take_over: bool) -> Result<LeaseAnswer> {
        let held = |connection: &Db| {
            let row = rows::existing(connection, thread)?;
            match &row.owner {
                Some(holder) if !take_over && self.is_alive(holder)? => Ok(Err(holder.clone())),
                _ => Ok(Ok(row)),
            }
        };
        // Reading is cheap; the transaction is only begun if the lease seems free.
        if let Err(holder) = self.read(held)? {
            return Ok(LeaseAnswer::HeldBy(holder));
        }
        let taken = self.write(Durability::Lazy, |connection| {
            let row = match held(connection)? {
                Ok(row) => row,
                Err(holder) => return Ok(Err(holder)),
            };
            let Some(now) = index::set_lease(connection, &row, Some(self.owner.clone()), row.epoch + 1)? else {
                return Err(unsealed(connection, format!("thread `{thread}`")));
            };
            // Events that another process left for the next changeset do not show in the row.
            let is_led = rows::exists(connection, "SELECT 1 FROM leads WHERE thread = ?", [row.id])?;
            Ok(Ok((row, now, is_led)))
        })?;
        let (row, now, is_led) = match taken {
            Ok(taken) => taken,
            Err(holder) => {
                self.forget(thread);
                return Ok(LeaseAnswer::HeldBy(holder));
            }
        };
        let epoch = now.epoch;
        if is_led {
            self.forget(thread);
        } else {
            self.remember_lease(thread, &row, &now);
        }
        let thread = thread.clone();
        let owner = self.owner.clone();
        Ok(LeaseAnswer::Granted(Lease { thread, owner, epoch, taken_from: row.owner }))
    }

    fn holder(&self, thread: &ThreadId) -> Result<Option<(OwnerId, u64)>> {
        let row = self.read(|connection| rows::existing(connection, thread))?;
        Ok(row.owner.map(|owner| (owner, row.epoch)))
    }

    fn leases_freed(&self) -> u64 {
        self.watch.leases_freed()
    }

    fn wait_for_lease(&self, freed: u64, timeout: Duration) -> Result<()> {
        self.watch.wait(self.layout.root(), timeout, || Ok(self.watch.leases_freed() > freed))
    }
}

impl Core {
    pub(crate) fn acquire(&self, thread: &ThreadId, how: Acquire) -> Result<Lease> {
        self.lease_queue.acquire(thread, how, &self.owner, self)
    }

    pub(crate) fn renew(&self, lease: &Lease) -> Result<()> {
        let row = self.read(|connection| rows::existing(connection, &lease.thread))?;
        if row.epoch != lease.epoch || row.owner.as_ref() != Some(&lease.owner) {
            return Err(Error::StaleEpoch { thread: lease.thread.clone(), held: lease.epoch, current: row.epoch });
        }
        Ok(())
    }

    /// Overwrites the previous heartbeat in the owner's own file, in one write of constant length and without a sync: a few per second cost
    /// nothing, and after a power failure the logs show how long runs continued, up to their last commit. The file is not opened: the system
    /// would report its close as the release of a lease.
    pub(crate) fn beat(&self, file: &dyn DiskFile, at: Timestamp) -> Result<()> {
        let time = format!("{:<BEAT_TIME_BYTES$}", at.to_string());
        let beat = SealedRow::Beat { owner: &self.owner, time: &time };
        let mark = self.signing.as_ref().map(|signing| beat.mark(&signing.rows.seals).to_string());
        let text = format!("{time}{:<64}\n", mark.unwrap_or_default());
        file.write_at(text.as_bytes(), 0).map_err(io_error("write", &self.layout.owner(&self.owner)))
    }

    /// The last heartbeat of an owner; none if it can't be read, or was not made with our key: what it adds to the time of a lost run is
    /// signed, and counts towards limits.
    pub(crate) fn last_beat(&self, owner: &OwnerId) -> Result<Option<Timestamp>> {
        let bytes = disk::read(&*self.disk, &self.layout.owner(owner), BEAT_BYTES as u64);
        let text = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let Some((time, mark)) = text.as_deref().and_then(|text| text.split_at_checked(BEAT_TIME_BYTES)) else {
            return Ok(None);
        };
        let beat = SealedRow::Beat { owner, time };
        let is_ours = self.signing.as_ref().is_none_or(|signing| {
            let mark = mark.trim_end().parse();
            mark.is_ok_and(|mark| beat.is_marked(&signing.rows.seals, &mark))
        });
        Ok(time.trim_end().parse().ok().filter(|_| is_ours))
    }

    pub(crate) fn release(&self, lease: &Lease, pending: PendingRequests) -> Result<()> {
        let cleared = match self.clear_lease(lease, pending) {
            Err(refused @ Error::RequestsPending { .. }) => return Err(refused),
            // After a temporary failure the thread must not stay leased to a holder that believes to have released it.
            Err(_) => self.clear_lease(lease, pending)?,
            Ok(row) => row,
        };
        match cleared {
            Some((before, now)) => self.remember_lease(&lease.thread, &before, &now),
            None => self.forget(&lease.thread),
        }
        self.handles.close(&lease.thread);
        self.lease_queue.end_turn(lease);
        self.watch.free();
        // Closing it wakes waiters in other processes. One that can't be woken is woken by the next release, or by this owner's death.
        drop(self.disk.open(&self.layout.owner(&self.owner), OpenMode::Write));
        Ok(())
    }

    /// Releases a lease; returns the row before and after, if the lease was still held.
    fn clear_lease(&self, lease: &Lease, pending: PendingRequests) -> Result<Option<(Row, Row)>> {
        self.write(Durability::Lazy, |connection| {
            // The thread was deleted or its lease taken over: nothing to release.
            let Some(row) = rows::find(connection, &lease.thread)? else { return Ok(None) };
            if row.epoch != lease.epoch || row.owner.as_ref() != Some(&lease.owner) {
                return Ok(None);
            }
            let count = inbox::holding(connection, &row)?;
            if count > 0 && pending == PendingRequests::Refuse {
                return Err(Error::RequestsPending { thread: lease.thread.clone(), count });
            }
            Ok(index::set_lease(connection, &row, None, row.epoch)?.map(|now| (row, now)))
        })
    }

    pub(crate) fn live_holder(&self, thread: &ThreadId) -> Result<Option<OwnerId>> {
        let row = self.read(|connection| rows::existing(connection, thread))?;
        match row.owner {
            Some(owner) if self.is_alive(&owner)? => Ok(Some(owner)),
            _ => Ok(None),
        }
    }

    pub(crate) fn dead_leases(&self) -> Result<Vec<Lease>> {
        let held = self.read(|connection| rows::select_any(connection, "h.owner IS NOT NULL ORDER BY t.id", []))?;
        let mut dead = Vec::new();
        for row in held {
            if let Some(owner) = row.owner
                && !self.is_alive(&owner)?
            {
                dead.push(Lease { thread: row.manifest.thread_id, owner, epoch: row.epoch, taken_from: None });
            }
        }
        Ok(dead)
    }
}
