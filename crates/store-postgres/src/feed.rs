//! The feed of commits. Positions are transaction ids with a number, and readers stop below the oldest transaction that still runs: a
//! commit never appears behind a reader.

use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use selvedge_store::{FeedEntry, Result};

use crate::core::Core;
use crate::pool::{Connection, Problem};
use crate::rows;

/// How long a reader waits for transactions that run beside a commit which is there already. One that runs longer delays followers, and a
/// reader waits for it once.
const BESIDE: Duration = Duration::from_secs(1);

impl Core {
    /// Reads below the horizon; if there is more above it, after a moment: usually the transactions beside it end at once, and a caller
    /// finds what it has just committed.
    pub(crate) fn below_horizon<T>(
        &self,
        above: &str,
        mut read: impl FnMut(&mut Connection) -> Result<T, Problem>,
    ) -> Result<T> {
        let until = Instant::now() + BESIDE;
        let mut pause = Duration::from_micros(500);
        loop {
            let (horizon, found) = self.read(|connection| {
                let horizon = connection.first(above, &[])?.map(|row| row.get::<_, i64>(0));
                Ok((horizon, read(connection)?))
            })?;
            let Some(horizon) = horizon else { return Ok(found) };
            if self.waited_at.load(Ordering::SeqCst) == horizon {
                return Ok(found);
            }
            if Instant::now() >= until {
                self.waited_at.store(horizon, Ordering::SeqCst);
                return Ok(found);
            }
            sleep(pause);
            pause *= 2;
        }
    }

    pub(crate) fn position(&self) -> Result<u64> {
        let above = "SELECT horizon() FROM feed WHERE position >= horizon() LIMIT 1";
        let sql = "SELECT COALESCE(max(position), 0) FROM feed WHERE position < horizon()";
        self.below_horizon(above, |connection| {
            Ok(connection.first(sql, &[])?.map_or(0, |row| rows::unsigned(row.get(0))))
        })
    }

    pub(crate) fn after(&self, position: u64, limit: usize) -> Result<Vec<FeedEntry>> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let above = "SELECT horizon() FROM feed WHERE position >= horizon() LIMIT 1";
        let sql = "SELECT position, thread, version, first_line, lines FROM feed WHERE position > $1 AND position < horizon() \
                   ORDER BY position LIMIT $2";
        let (position, limit) = (rows::signed(position), rows::signed(limit as u64));
        let found = self.below_horizon(above, |connection| Ok(connection.query(sql, &[&position, &limit])?))?;
        let entry = |row: tokio_postgres::Row| {
            let first_line = rows::unsigned(row.get(3));
            let lines = first_line..first_line + rows::unsigned(row.get(4));
            Ok(FeedEntry::new(rows::unsigned(row.get(0)), rows::id(row.get(1))?, rows::unsigned(row.get(2)), lines))
        };
        found.into_iter().map(entry).collect()
    }
}
