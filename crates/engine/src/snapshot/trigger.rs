//! When a snapshot is saved. Pure.

use selvedge_items::config::state_persistence::{Coalesce, PRIORITY_SYNC, SnapshotRules, TriggerRule};
use selvedge_model::{Reason, Status};

use super::WORTH_BYTES;

/// What a snapshot is saved for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// The model is about to be called.
    PreTurn,
    /// Its answer is committed.
    PostLlm,
    /// The results of its tools are committed.
    PostTools,
    /// The thread is suspended.
    OnSuspend,
    /// A run failed.
    OnError,
    /// A run was stopped.
    OnCancel,
}

/// The progress of the log and of its last snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The version of the log.
    pub version: u64,
    /// The length of the log.
    pub log_bytes: u64,
    /// The version that was saved last.
    pub saved_version: Option<u64>,
    /// The length of the log when a save was last tried.
    pub tried_bytes: u64,
    /// The length of the last snapshot, unpacked.
    pub state_bytes: u64,
}

impl Trigger {
    /// All triggers.
    pub const ALL: [Self; 6] =
        [Self::PreTurn, Self::PostLlm, Self::PostTools, Self::OnSuspend, Self::OnError, Self::OnCancel];

    /// The trigger of a commit for this reason, when the thread's status went from `before` to `now`. No commit triggers [`Self::PreTurn`]:
    /// a turn begins without one, unless the call is paid for.
    pub fn of(reason: Reason, before: Status, now: Status) -> Option<Self> {
        match (now, reason) {
            (Status::Suspended, _) if before != now => Some(Self::OnSuspend),
            (Status::Error, _) if before != now => Some(Self::OnError),
            (Status::Cancelled | Status::Killed, _) if before != now => Some(Self::OnCancel),
            (Status::Running, Reason::AssistantTurnCommitted) => Some(Self::PostLlm),
            (Status::Running, Reason::ToolResultsCommitted | Reason::StepCommitted) => Some(Self::PostTools),
            _ => None,
        }
    }

    /// Its name in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PreTurn => "pre_turn",
            Self::PostLlm => "post_llm",
            Self::PostTools => "post_tools",
            Self::OnSuspend => "on_suspend",
            Self::OnError => "on_error",
            Self::OnCancel => "on_cancel",
        }
    }

    fn rule(self, config: &SnapshotRules) -> &TriggerRule {
        let triggers = &config.triggers;
        match self {
            Self::PreTurn => &triggers.pre_turn,
            Self::PostLlm => &triggers.post_llm,
            Self::PostTools => &triggers.post_tools,
            Self::OnSuspend => &triggers.on_suspend,
            Self::OnError => &triggers.on_error,
            Self::OnCancel => &triggers.on_cancel,
        }
    }

    /// Whether it saves whatever the configuration says: a thread that is suspended or failed may stay so for long, and is inspected by people.
    pub fn is_bound(self) -> bool {
        matches!(self, Self::OnSuspend | Self::OnError | Self::OnCancel)
    }

    /// Whether its snapshot is saved before the run continues; otherwise it may be saved in the background.
    pub fn is_at_once(self, config: &SnapshotRules) -> bool {
        self.is_bound()
            || self.rule(config).priority >= PRIORITY_SYNC
            || config.performance.coalesce == Coalesce::Always
    }

    /// Whether a snapshot is saved now.
    pub fn is_due(self, config: &SnapshotRules, progress: &Progress) -> bool {
        // The last one is up to date.
        if progress.saved_version == Some(progress.version) {
            return false;
        }
        let rule = self.rule(config);
        if self.is_bound() || (rule.enabled && rule.priority >= PRIORITY_SYNC) {
            return true;
        }
        let grown = progress.log_bytes.saturating_sub(progress.tried_bytes);
        rule.enabled
            && match config.performance.coalesce {
                // After a failure, nothing is tried before the log has grown.
                Coalesce::Always => grown > 0,
                Coalesce::Auto => grown >= progress.state_bytes.max(WORTH_BYTES),
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_items::config::state_persistence::StatePersistence;

    fn builtin() -> SnapshotRules {
        StatePersistence::builtin().checkpoint
    }

    fn progress(log_bytes: u64, tried_bytes: u64, state_bytes: u64) -> Progress {
        Progress { version: 9, log_bytes, saved_version: Some(3), tried_bytes, state_bytes }
    }

    #[test]
    fn triggers_of_low_priority_wait_until_the_log_has_grown_by_the_last_snapshot() {
        for trigger in [Trigger::PreTurn, Trigger::PostLlm, Trigger::PostTools] {
            let due = |progress| trigger.is_due(&builtin(), &progress);
            assert!(!due(progress(399_999, 200_000, 200_000)) && due(progress(400_000, 200_000, 200_000)));
            // A short log is read whole.
            assert!(!due(progress(WORTH_BYTES - 1, 0, 0)) && due(progress(WORTH_BYTES, 0, 0)));
        }
    }

    #[test]
    fn coalesce_always_saves_every_time_and_a_disabled_trigger_never() {
        let mut config = builtin();
        config.performance.coalesce = Coalesce::Always;
        config.triggers.pre_turn.enabled = false;
        let due: Vec<_> = Trigger::ALL.iter().filter(|it| it.is_due(&config, &progress(10, 9, 5))).collect();
        assert_eq!(due, Trigger::ALL[1..].iter().collect::<Vec<_>>());
    }

    #[test]
    fn a_thread_that_is_suspended_or_failed_is_saved_whatever_the_configuration_says() {
        let mut config = builtin();
        for rule in [&mut config.triggers.on_suspend, &mut config.triggers.on_error, &mut config.triggers.on_cancel] {
            rule.enabled = false;
            rule.priority = 0;
        }
        let due: Vec<_> = Trigger::ALL.iter().filter(|it| it.is_due(&config, &progress(10, 9, 5))).collect();
        assert_eq!(due, Trigger::ALL[3..].iter().collect::<Vec<_>>());
    }

    #[test]
    fn a_high_priority_is_not_coalesced_and_one_version_is_saved_once() {
        let mut config = builtin();
        config.triggers.post_tools.priority = 10;
        assert!(Trigger::PostTools.is_due(&config, &progress(10, 9, 5)));
        let same = Progress { saved_version: Some(9), ..progress(10, 9, 5) };
        assert!(Trigger::ALL.iter().all(|trigger| !trigger.is_due(&config, &same)));
    }

    #[test]
    fn a_commit_determines_its_trigger() {
        use Status::{Cancelled, Completed, Error, Killed, Running, Suspended};
        let of = |reason, now| Trigger::of(reason, Running, now);
        assert_eq!((of(Reason::UserMessage, Running), of(Reason::Reserved, Running)), (None, None));
        assert_eq!(of(Reason::AssistantTurnCommitted, Running), Some(Trigger::PostLlm));
        assert_eq!(of(Reason::ToolResultsCommitted, Running), Some(Trigger::PostTools));
        assert_eq!(of(Reason::RunFinished, Suspended), Some(Trigger::OnSuspend));
        assert_eq!(of(Reason::RunFinished, Error), Some(Trigger::OnError));
        assert_eq!(of(Reason::RunFinished, Cancelled), Some(Trigger::OnCancel));
        assert_eq!(of(Reason::Lifecycle, Killed), Some(Trigger::OnCancel));
        assert_eq!((of(Reason::RunFinished, Completed), of(Reason::ToolIntentCommitted, Running)), (None, None));
        assert_eq!(Trigger::of(Reason::Lifecycle, Suspended, Suspended), None);
    }
}
