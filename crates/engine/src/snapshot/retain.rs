//! Which snapshots are removed. Deciding is pure: names and a clock in, names out. [`tidy_idle`] removes them for a thread without a run.

use selvedge_items::config::state_persistence::Retention;
use selvedge_model::{ThreadId, Timestamp};
use selvedge_store::Snapshots;
use selvedge_store::snapshot::{Disposal, SnapshotFolder, SnapshotInfo};

const DAY_MICROS: i64 = 24 * 60 * 60 * 1_000_000;

/// The obsolete ones among `kept`, which has either only older ones or only archived ones. `newest` is the newest snapshot: its base is
/// needed.
pub fn superfluous(
    kept: &[SnapshotInfo],
    newest: Option<&SnapshotInfo>,
    rules: &Retention,
    now: Timestamp,
) -> Vec<SnapshotInfo> {
    if !rules.cleanup.enabled {
        return Vec::new();
    }
    let mut sorted: Vec<&SnapshotInfo> = kept.iter().collect();
    sorted.sort_by_key(|kept| std::cmp::Reverse((kept.version, kept.saved_at)));
    let oldest = age_bound(rules.cleanup.delete_older_than_days, now);
    let stays = |(place, kept): &(usize, &SnapshotInfo)| {
        let is_young = oldest.is_none_or(|oldest| kept.saved_at.as_micros() > oldest);
        *place < rules.cleanup.keep_last_n || (*place < rules.max_checkpoints && is_young)
    };
    let mut needed: Vec<u64> = newest.and_then(|newest| newest.base).into_iter().collect();
    let mut gone = Vec::new();
    // From the newest to the oldest, so that the bases that are needed are known in time.
    for (place, kept) in sorted.into_iter().enumerate() {
        if stays(&(place, kept)) || needed.contains(&kept.version) {
            needed.extend(kept.base);
        } else {
            gone.push(kept.clone());
        }
    }
    gone
}

/// Removes the obsolete snapshots of a thread. A run removes them only when it saves another one, so those of a thread without runs would
/// stay for ever. Returns those that are removed on return, or that would be if not `done`. One that is not valid does not count and stays,
/// for inspection.
pub fn tidy_idle(
    store: &dyn Snapshots,
    rules: &Retention,
    thread: &ThreadId,
    now: Timestamp,
    done: bool,
) -> selvedge_store::Result<Vec<SnapshotInfo>> {
    let archive = rules.on_completion.archive_folder().unwrap_or("archive");
    let kept = store.list_snapshots(thread, archive)?;
    let newest = kept.iter().find(|kept| kept.place == SnapshotFolder::Newest);
    let mut gone = Vec::new();
    for (place, newest) in [(SnapshotFolder::Older, newest), (SnapshotFolder::Archived, None)] {
        let mut here: Vec<SnapshotInfo> = kept.iter().filter(|kept| kept.place == place).cloned().collect();
        // They are only read if any would be removed.
        if superfluous(&here, newest, rules, now).is_empty() {
            continue;
        }
        here.retain(|kept| store.read_snapshot(thread, kept, archive).is_ok());
        gone.extend(superfluous(&here, newest, rules, now));
    }
    if done && !gone.is_empty() {
        store.dispose(thread, &gone, archive, Disposal::Delete)?;
    }
    Ok(gone)
}

/// A snapshot that was saved at this time or before is old.
fn age_bound(days: u64, now: Timestamp) -> Option<i64> {
    let age = i64::try_from(days).ok()?.checked_mul(DAY_MICROS)?;
    now.as_micros().checked_sub(age)
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_items::config::state_persistence::StatePersistence;
    use selvedge_store::snapshot::SnapshotFolder;

    fn now() -> Timestamp {
        "2026-11-15T12:00:00Z".parse().unwrap()
    }

    /// Snapshots of these versions, this many days old, each with a base or without.
    fn kept(all: &[(u64, i64, Option<u64>)]) -> Vec<SnapshotInfo> {
        let one = |(version, days, base): &(u64, i64, Option<u64>)| SnapshotInfo {
            place: SnapshotFolder::Older,
            name: format!("{version}"),
            version: *version,
            saved_at: Timestamp::from_micros(now().as_micros() - days * DAY_MICROS),
            base: *base,
            bytes: 1,
        };
        all.iter().map(one).collect()
    }

    fn gone(all: &[(u64, i64, Option<u64>)], newest: Option<u64>, change: impl FnOnce(&mut Retention)) -> Vec<u64> {
        let mut rules = StatePersistence::builtin().retention;
        change(&mut rules);
        let newest = kept(&[(1000, 0, newest)]).pop();
        superfluous(&kept(all), newest.as_ref(), &rules, now()).iter().map(|kept| kept.version).collect()
    }

    #[test]
    fn the_configured_number_is_kept_and_no_more() {
        let all: Vec<_> = (1..=13).map(|version| (version, 0, None)).collect();
        assert_eq!(gone(&all, None, |_| {}), [3, 2, 1]);
        assert_eq!(gone(&all, None, |rules| rules.max_checkpoints = 20), [0; 0]);
        assert_eq!(gone(&all, None, |rules| rules.cleanup.enabled = false), [0; 0]);
    }

    #[test]
    fn old_ones_are_removed_except_the_last_few() {
        let all = [(1, 30, None), (2, 20, None), (3, 10, None), (4, 9, None), (5, 8, None), (6, 6, None)];
        assert_eq!(gone(&all, None, |_| {}), [3, 2, 1]);
        assert_eq!(gone(&all, None, |rules| rules.cleanup.keep_last_n = 5), [1]);
        assert_eq!(gone(&all, None, |rules| rules.cleanup.keep_last_n = 0), [5, 4, 3, 2, 1]);
        assert_eq!(gone(&all, None, |rules| rules.cleanup.delete_older_than_days = 15), [2, 1]);
        assert_eq!(gone(&[(1, 7, None)], None, |rules| rules.cleanup.keep_last_n = 0), [1]);
    }

    #[test]
    fn the_last_few_stay_even_if_the_maximum_is_zero() {
        let all = [(1, 0, None), (2, 0, None), (3, 0, None), (4, 0, None)];
        assert_eq!(gone(&all, None, |rules| rules.max_checkpoints = 0), [1]);
    }

    #[test]
    fn a_base_stays_as_long_as_a_snapshot_needs_it() {
        let all = [(1, 30, None), (2, 30, Some(1)), (3, 30, None), (4, 0, Some(2))];
        assert_eq!(gone(&all, None, |rules| rules.cleanup.keep_last_n = 1), [3]);
        assert_eq!(gone(&all[..3], Some(2), |rules| rules.cleanup.keep_last_n = 0), [3]);
        assert_eq!(gone(&all[..3], None, |rules| rules.cleanup.keep_last_n = 0), [3, 2, 1]);
    }
}
