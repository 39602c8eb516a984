//! Which snapshots go. Pure: names and a clock in, what goes out.

use selvedge_items::config::state_persistence::Retention;
use selvedge_model::Timestamp;
use selvedge_store::snapshot::Kept;

const DAY_MICROS: i64 = 24 * 60 * 60 * 1_000_000;

/// Those of `kept` that go, when there is nothing else among them but older ones, or nothing else but archived ones. `newest` is what they
/// are older than: what it builds on stays.
pub fn superfluous(kept: &[Kept], newest: Option<&Kept>, rules: &Retention, now: Timestamp) -> Vec<Kept> {
    if !rules.cleanup.enabled {
        return Vec::new();
    }
    let mut sorted: Vec<&Kept> = kept.iter().collect();
    sorted.sort_by_key(|kept| std::cmp::Reverse((kept.version, kept.saved_at)));
    let oldest = age_bound(rules.cleanup.delete_older_than_days, now);
    let stays = |(place, kept): &(usize, &Kept)| {
        let is_young = oldest.is_none_or(|oldest| kept.saved_at.as_micros() > oldest);
        *place < rules.cleanup.keep_last_n || (*place < rules.max_checkpoints && is_young)
    };
    let mut needed: Vec<u64> = newest.and_then(|newest| newest.base).into_iter().collect();
    let mut gone = Vec::new();
    // From the newest to the oldest, so that whoever is needed is known when it is looked at.
    for (place, kept) in sorted.into_iter().enumerate() {
        match stays(&(place, kept)) || needed.contains(&kept.version) {
            true => needed.extend(kept.base),
            false => gone.push(kept.clone()),
        }
    }
    gone
}

/// What was saved at this moment or before is old.
fn age_bound(days: u64, now: Timestamp) -> Option<i64> {
    let age = i64::try_from(days).ok()?.checked_mul(DAY_MICROS)?;
    now.as_micros().checked_sub(age)
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_items::config::state_persistence::StatePersistence;
    use selvedge_store::snapshot::Place;

    fn now() -> Timestamp {
        "2026-11-15T12:00:00Z".parse().unwrap()
    }

    /// Snapshots of these versions, as many days old, each on top of another one or none.
    fn kept(all: &[(u64, i64, Option<u64>)]) -> Vec<Kept> {
        let one = |(version, days, base): &(u64, i64, Option<u64>)| Kept {
            place: Place::Older,
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
    fn so_many_are_kept_and_no_more() {
        let all: Vec<_> = (1..=13).map(|version| (version, 0, None)).collect();
        assert_eq!(gone(&all, None, |_| {}), [3, 2, 1]);
        assert_eq!(gone(&all, None, |rules| rules.max_checkpoints = 20), [0; 0]);
        assert_eq!(gone(&all, None, |rules| rules.cleanup.enabled = false), [0; 0]);
    }

    #[test]
    fn the_old_go_except_the_last_few() {
        let all = [(1, 30, None), (2, 20, None), (3, 10, None), (4, 9, None), (5, 8, None), (6, 6, None)];
        assert_eq!(gone(&all, None, |_| {}), [3, 2, 1]);
        assert_eq!(gone(&all, None, |rules| rules.cleanup.keep_last_n = 5), [1]);
        assert_eq!(gone(&all, None, |rules| rules.cleanup.keep_last_n = 0), [5, 4, 3, 2, 1]);
        assert_eq!(gone(&all, None, |rules| rules.cleanup.delete_older_than_days = 15), [2, 1]);
        assert_eq!(gone(&[(1, 7, None)], None, |rules| rules.cleanup.keep_last_n = 0), [1]);
    }

    #[test]
    fn the_last_few_stay_although_no_number_is_allowed() {
        let all = [(1, 0, None), (2, 0, None), (3, 0, None), (4, 0, None)];
        assert_eq!(gone(&all, None, |rules| rules.max_checkpoints = 0), [1]);
    }

    #[test]
    fn what_another_builds_on_stays_with_it() {
        let all = [(1, 30, None), (2, 30, Some(1)), (3, 30, None), (4, 0, Some(2))];
        assert_eq!(gone(&all, None, |rules| rules.cleanup.keep_last_n = 1), [3]);
        assert_eq!(gone(&all[..3], Some(2), |rules| rules.cleanup.keep_last_n = 0), [3]);
        assert_eq!(gone(&all[..3], None, |rules| rules.cleanup.keep_last_n = 0), [3, 2, 1]);
    }
}
