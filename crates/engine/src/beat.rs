//! That this process lives: recorded a few times a second for all threads that it holds, and read back when one of them was lost.
//!
//! A commit says for itself how long a run went on. What comes after the last one is known to nobody if the process dies, unless it
//! recorded a beat: the process that settles the lost run counts the time from its last commit to that beat, and from then on it stands
//! in the log.
//!
//! - What is lost of the running time at a death is what passed since the last beat; at a power cut, all since the last commit.
//! - It is never taken for more than the time that passed between the last commit and now.

use selvedge_model::Timestamp;

/// How long a lost run went on after its last commit.
pub(crate) fn ran_on_ms(beat: Option<Timestamp>, committed: Timestamp, now: Timestamp) -> u64 {
    let since = |at: Timestamp| at.as_micros().saturating_sub(committed.as_micros()) / 1000;
    let ran = beat.map_or(0, since).min(since(now));
    u64::try_from(ran).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_counts_from_the_last_commit_on_and_for_no_more_than_the_time_that_passed() {
        let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
        assert_eq!(ran_on_ms(Some(at(104)), at(100), at(200)), 4000);
        assert_eq!(ran_on_ms(Some(at(99)), at(100), at(200)), 0, "it committed once more, and died");
        assert_eq!(ran_on_ms(Some(at(104)), at(100), at(103)), 3000);
        assert_eq!(ran_on_ms(Some(at(104)), at(100), at(50)), 0, "the clock was set back");
        assert_eq!(ran_on_ms(None, at(100), at(200)), 0);
    }
}
