//! Leases between processes: a row names owner and epoch, and whether the owner lives is asked of the operating system.
//!
//! Lease rows are not synced: a power cut ends every owner, and the epochs that matter stand signed in the logs.

use selvedge_model::{OwnerId, ThreadId, Timestamp};
use selvedge_store::lease::{Answer, Backend};
use selvedge_store::{Acquire, Error, Lease, Result};

use crate::core::{Core, Durability, io_error};
use crate::db::Db;
use crate::disk::{self, How};
use crate::rows::{self, Row};
use crate::sealed::unsealed;
use crate::{inbox, index};

/// How long a beat is on disk: a time, and spaces up to here, so that each is as long as the one before.
const BEAT_BYTES: usize = 40;

/// Whether a holder must have heard what was sent before it may give a lease back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hear {
    First,
    Never,
}

impl Backend for Core {
    fn ask(&self, thread: &ThreadId, take_over: bool) -> Result<Answer> {
        let held = |connection: &Db| {
            let row = rows::existing(connection, thread)?;
            match &row.owner {
                Some(holder) if !take_over && self.is_alive(holder)? => Ok(Err(holder.clone())),
                _ => Ok(Ok(row)),
            }
        };
        // Looking costs nothing; only what seems to be free is asked for in a transaction.
        if let Err(holder) = self.read(held)? {
            return Ok(Answer::HeldBy(holder));
        }
        let taken = self.write(Durability::Lazy, |connection| {
            let row = match held(connection)? {
                Ok(row) => row,
                Err(holder) => return Ok(Err(holder)),
            };
            let Some(now) = index::set_lease(connection, &row, Some(self.owner.clone()), row.epoch + 1)? else {
                return Err(unsealed(connection, format!("thread `{thread}`")));
            };
            // What another process left for the next changeset to lead with does not show in the row.
            let is_led = rows::exists(connection, "SELECT 1 FROM leads WHERE thread = ?", [row.id])?;
            Ok(Ok((row, now, is_led)))
        })?;
        let (row, now, is_led) = match taken {
            Ok(taken) => taken,
            Err(holder) => {
                self.forget(thread);
                return Ok(Answer::HeldBy(holder));
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
        Ok(Answer::Granted(Lease { thread, owner, epoch, taken_from: row.owner }))
    }

    fn holder(&self, thread: &ThreadId) -> Result<Option<(OwnerId, u64)>> {
        let row = self.read(|connection| rows::existing(connection, thread))?;
        Ok(row.owner.map(|owner| (owner, row.epoch)))
    }
}

impl Core {
    pub(crate) fn acquire(&self, thread: &ThreadId, how: Acquire) -> Result<Lease> {
        self.desk.acquire(thread, how, &self.owner, self)
    }

    pub(crate) fn renew(&self, lease: &Lease) -> Result<()> {
        let row = self.read(|connection| rows::existing(connection, &lease.thread))?;
        match row.epoch == lease.epoch && row.owner.as_ref() == Some(&lease.owner) {
            true => Ok(()),
            false => Err(Error::StaleEpoch { thread: lease.thread.clone(), held: lease.epoch, current: row.epoch }),
        }
    }

    /// Writes a beat over the one before, into the owner's own file, in one write of always the same length and without a sync: a few a
    /// second are nothing, and after a power cut the logs say how long runs went on until their last commit.
    pub(crate) fn beat(&self, at: Timestamp) -> Result<()> {
        let path = self.layout.owner(&self.owner);
        let text = format!("{:<width$}\n", at.to_string(), width = BEAT_BYTES - 1);
        let file = self.disk.open(&path, How::Write).map_err(io_error("open", &path))?;
        file.write_at(text.as_bytes(), 0).map_err(io_error("write", &path))
    }

    /// What can't be read is no beat: nothing is counted for it.
    pub(crate) fn last_beat(&self, owner: &OwnerId) -> Result<Option<Timestamp>> {
        let bytes = disk::read(&*self.disk, &self.layout.owner(owner), BEAT_BYTES as u64);
        let text = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok());
        Ok(text.and_then(|text| text.trim_end().parse().ok()))
    }

    pub(crate) fn release(&self, lease: &Lease, hear: Hear) -> Result<()> {
        let handed_back = match self.hand_back(lease, hear) {
            Err(refused @ Error::RequestsPending { .. }) => return Err(refused),
            // A failure that passes must not leave the thread held by somebody who believes to have given it back.
            Err(_) => self.hand_back(lease, hear)?,
            Ok(row) => row,
        };
        match handed_back {
            Some((before, now)) => self.remember_lease(&lease.thread, &before, &now),
            None => self.forget(&lease.thread),
        }
        self.handles.close(&lease.thread);
        self.desk.leave(lease);
        Ok(())
    }

    /// Gives the row as it was before and as it is then, if there was a lease to give back.
    fn hand_back(&self, lease: &Lease, hear: Hear) -> Result<Option<(Row, Row)>> {
        self.write(Durability::Lazy, |connection| {
            // A thread that was deleted or taken over has nothing to give back.
            let Some(row) = rows::find(connection, &lease.thread)? else { return Ok(None) };
            if row.epoch != lease.epoch || row.owner.as_ref() != Some(&lease.owner) {
                return Ok(None);
            }
            let count = inbox::holding(connection, &row)?;
            if count > 0 && hear == Hear::First {
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
