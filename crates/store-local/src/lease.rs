//! Leases between processes: a row names owner and epoch, and whether the owner lives is asked of the operating system.
//!
//! Lease rows are not synced: a power cut ends every owner, and the epochs that matter stand signed in the logs.

use rusqlite::params;
use selvedge_model::ThreadId;
use selvedge_store::lease::Answer;
use selvedge_store::{Acquire, Error, Lease, Result};

use crate::core::{Core, Durability};
use crate::rows::{self, signed};

impl Core {
    pub(crate) fn acquire(&self, thread: &ThreadId, how: Acquire) -> Result<Lease> {
        self.desk.acquire(thread, how, &self.owner, || {
            let seen = self.read(|connection| rows::existing(connection, thread))?;
            if let Some(holder) = &seen.owner
                && !how.take_over
                && self.is_alive(holder)?
            {
                return Ok(Answer::HeldBy(holder.clone()));
            }
            let epoch = seen.epoch + 1;
            let granted = self.write(Durability::Lazy, |connection| {
                let sql = "UPDATE heads SET owner = ?, epoch = ? WHERE id = ? AND epoch = ? AND owner IS ?";
                let before = seen.owner.as_ref().map(|owner| owner.as_str());
                let changed = rows::execute(
                    connection,
                    sql,
                    params![self.owner.as_str(), signed(epoch), seen.id, signed(seen.epoch), before],
                )?;
                Ok(changed == 1)
            })?;
            self.forget(thread);
            match granted {
                true => Ok(Answer::Granted(Lease { thread: thread.clone(), owner: self.owner.clone(), epoch })),
                // Somebody was faster; who, the next look tells.
                false => Ok(Answer::HeldBy(seen.owner.unwrap_or_else(|| self.owner.clone()))),
            }
        })
    }

    pub(crate) fn renew(&self, lease: &Lease) -> Result<()> {
        let row = self.read(|connection| rows::existing(connection, &lease.thread))?;
        match row.epoch == lease.epoch && row.owner.as_ref() == Some(&lease.owner) {
            true => Ok(()),
            false => {
                Err(Error::StaleEpoch { thread: lease.thread.clone(), held: lease.epoch, current: row.epoch })
            }
        }
    }

    pub(crate) fn release(&self, lease: &Lease) -> Result<()> {
        self.write(Durability::Lazy, |connection| {
            // A thread that was deleted or taken over has nothing to give back.
            let Some(row) = rows::find(connection, &lease.thread)? else { return Ok(()) };
            if row.epoch != lease.epoch || row.owner.as_ref() != Some(&lease.owner) {
                return Ok(());
            }
            let waiting = rows::notes(connection, row.id, &lease.thread)?;
            let count = waiting.iter().filter(|note| note.kind == "send").count();
            if count > 0 {
                return Err(Error::NotesPending { thread: lease.thread.clone(), count });
            }
            rows::execute(connection, "UPDATE heads SET owner = NULL WHERE id = ?", [row.id])?;
            Ok(())
        })?;
        self.forget(&lease.thread);
        self.desk.leave(lease);
        Ok(())
    }

    pub(crate) fn dead_leases(&self) -> Result<Vec<Lease>> {
        let held = self.read(|connection| rows::select(connection, "h.owner IS NOT NULL ORDER BY t.id", []))?;
        let mut dead = Vec::new();
        for row in held {
            if let Some(owner) = row.owner
                && !self.is_alive(&owner)?
            {
                dead.push(Lease { thread: row.manifest.thread_id, owner, epoch: row.epoch });
            }
        }
        Ok(dead)
    }
}
