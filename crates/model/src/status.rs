//! Where a thread and a run stand, and the one table of what may follow what.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Classify, Kind};

/// Where a thread stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It exists; nothing has run.
    Created,
    /// A run is active.
    Running,
    /// A run stopped and waits for somebody.
    Suspended,
    /// The last run ended well.
    Completed,
    /// The last run ended, and something in it had failed.
    CompletedWithErrors,
    /// The last run failed.
    Error,
    /// Somebody stopped it.
    Cancelled,
    /// Somebody ended it by force.
    Killed,
    /// Another thread goes on in its place; nothing follows here.
    Continued,
}

/// A change of status that the table does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a thread that is {from} can't become {to}")]
pub struct InvalidTransition {
    /// Where the thread stands.
    pub from: Status,
    /// Where it was to go.
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
            Status::Continued => Some("go on with the thread that continues it".to_owned()),
            Status::Running => Some("the active run must finish or be settled first".to_owned()),
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

    /// Whether the thread has come to an end, for now.
    pub fn is_terminal(self) -> bool {
        !matches!(self, Self::Created | Self::Running | Self::Suspended)
    }

    /// Whether a thread that stands here may go to `next`. Staying is always allowed, except that `continued` takes nothing.
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

    /// The status after a change to `next`, if the table has it.
    pub fn become_(self, next: Self) -> Result<Self, InvalidTransition> {
        if self.may_become(next) { Ok(next) } else { Err(InvalidTransition { from: self, to: next }) }
    }

    /// The word for it, as stored and shown.
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
        Self::ALL.into_iter().find(|s| s.as_str() == text).ok_or(format!("`{text}` is no status; there are {known}"))
    }
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// It is active.
    Running,
    /// It waits for somebody.
    Waiting,
    /// It is over.
    Done,
}

impl RunStatus {
    /// Whether a run that stands here may go to `next`; a run that is done stays so.
    pub fn may_become(self, next: Self) -> bool {
        self == next || self != Self::Done
    }

    /// The word for it, as stored and shown.
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
    fn the_transition_table_is_exactly_this() {
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
