//! The status of a thread and of a run, and the table of allowed transitions.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Classify, Kind};

/// The status of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It exists; nothing has run yet.
    Created,
    /// A run is active.
    Running,
    /// The run is suspended and waits for a person.
    Suspended,
    /// The last run ended successfully.
    Completed,
    /// The last run ended, but something in it had failed.
    CompletedWithErrors,
    /// The last run failed.
    Error,
    /// It was cancelled.
    Cancelled,
    /// It was killed.
    Killed,
    /// It was handed off to a successor; nothing follows in this thread.
    Continued,
}

/// A transition that the table does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a thread that is {from} can't become {to}")]
pub struct InvalidTransition {
    /// The current status.
    pub from: Status,
    /// The refused status.
    pub to: Status,
}

impl Classify for InvalidTransition {
    fn kind(&self) -> Kind {
        Kind::Denied
    }

    fn code(&self) -> &'static str {
        "invalid_transition"
    }

    fn hint(&self) -> Option<String> {
        match self.from {
            Status::Continued => Some("use the thread that continues it".to_owned()),
            Status::Running => Some("the active run must end first".to_owned()),
            _ => None,
        }
    }
}

impl Status {
    /// Every status, in the order of a thread's life.
    pub const ALL: [Self; 9] = [
        Self::Created,
        Self::Running,
        Self::Suspended,
        Self::Completed,
        Self::CompletedWithErrors,
        Self::Error,
        Self::Cancelled,
        Self::Killed,
        Self::Continued,
    ];

    /// The status in a sentence, after the name of the thread.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Created => "is created",
            Self::Running => "is running",
            Self::Suspended => "is suspended",
            Self::Completed => "is completed",
            Self::CompletedWithErrors => "is completed with errors",
            Self::Error => "has failed",
            Self::Cancelled => "is cancelled",
            Self::Killed => "is killed",
            Self::Continued => "is continued by a successor",
        }
    }

    /// Whether the thread has ended, until it is resumed.
    pub fn is_terminal(self) -> bool {
        !matches!(self, Self::Created | Self::Running | Self::Suspended)
    }

    /// Whether a thread with this status may change to `next`. Staying is always allowed, except that nothing may follow `continued`.
    pub fn may_become(self, next: Self) -> bool {
        use Status::{Cancelled, Continued, Created, Killed, Running, Suspended};
        match (self, next) {
            (Continued, _) => false,
            (from, to) if from == to => true,
            (Created, Running) => true,
            (Running, to) => to == Suspended || to.is_terminal(),
            (Suspended, Running | Cancelled | Killed) => true,
            (from, Running | Continued) => from.is_terminal(),
            _ => false,
        }
    }

    /// The status after a change to `next`, if that is allowed.
    pub fn become_(self, next: Self) -> Result<Self, InvalidTransition> {
        if self.may_become(next) { Ok(next) } else { Err(InvalidTransition { from: self, to: next }) }
    }

    /// Its name, as stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Suspended => "suspended",
            Self::Completed => "completed",
            Self::CompletedWithErrors => "completed_with_errors",
            Self::Error => "error",
            Self::Cancelled => "cancelled",
            Self::Killed => "killed",
            Self::Continued => "continued",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for Status {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.map(Self::as_str).join(", ");
        let status = Self::ALL.into_iter().find(|status| status.as_str() == text);
        status.ok_or_else(|| format!("`{text}` is not a status; use one of {known}"))
    }
}

/// The status of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// It is active.
    Running,
    /// It is suspended.
    Waiting,
    /// It has ended.
    Done,
}

impl RunStatus {
    /// Whether a run with this status may change to `next`; a run that has ended stays so.
    pub fn may_become(self, next: Self) -> bool {
        self == next || self != Self::Done
    }

    /// Its name, as stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Done => "done",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transition_table_is_complete() {
        let allowed = |from: Status| -> Vec<&str> {
            Status::ALL.into_iter().filter(|to| *to != from && from.may_become(*to)).map(Status::as_str).collect()
        };
        let ends = ["completed", "completed_with_errors", "error", "cancelled", "killed", "continued"];
        assert_eq!(allowed(Status::Created), ["running"]);
        assert_eq!(allowed(Status::Running), [&["suspended"][..], &ends].concat());
        assert_eq!(allowed(Status::Suspended), ["running", "cancelled", "killed"]);
        for end in [Status::Completed, Status::CompletedWithErrors, Status::Error, Status::Cancelled, Status::Killed] {
            assert_eq!(allowed(end), ["running", "continued"]);
        }
        assert!(Status::ALL.into_iter().all(|to| !Status::Continued.may_become(to)));
    }

    #[test]
    fn a_done_run_stays_done() {
        assert!(RunStatus::Running.may_become(RunStatus::Waiting) && RunStatus::Waiting.may_become(RunStatus::Running));
        assert!(!RunStatus::Done.may_become(RunStatus::Running) && RunStatus::Done.may_become(RunStatus::Done));
    }
}
