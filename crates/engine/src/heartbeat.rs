//! The heartbeat of this process: recorded a few times a second for all threads that it holds, and read when one of its runs was lost.
//!
//! Each commit records how long the run has lasted. The time after the last commit is lost if the process dies, except for what the
//! heartbeat shows: the process that settles the lost run counts the time from the last commit to the last heartbeat, and records it.
//!
//! - When a process dies, the running time since its last heartbeat is lost; after a power cut, all since the last commit.
//! - Never more is counted than the time between the last commit and now.

use selvedge_model::Timestamp;

/// How long a lost run lasted after its last commit.
pub(crate) fn ran_on_ms(beat: Option<Timestamp>, committed: Timestamp, now: Timestamp) -> u64 {
    let since = |at: Timestamp| at.as_micros().saturating_sub(committed.as_micros()) / 1000;
    let ran = beat.map_or(0, since).min(since(now));
    u64::try_from(ran).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_counts_from_the_last_commit_and_for_no_more_than_the_time_that_passed() {
        let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
        assert_eq!(ran_on_ms(Some(at(104)), at(100), at(200)), 4000);
        assert_eq!(ran_on_ms(Some(at(99)), at(100), at(200)), 0, "it committed once more, and died");
        assert_eq!(ran_on_ms(Some(at(104)), at(100), at(103)), 3000);
        assert_eq!(ran_on_ms(Some(at(104)), at(100), at(50)), 0, "the clock was set back");
        assert_eq!(ran_on_ms(None, at(100), at(200)), 0);
    }
}
