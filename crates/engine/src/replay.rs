//! Runs a recorded thread again, without network and without tools: does the current engine, with the current directive, tools and
//! configuration, decide as recorded?
//!
//! In reading order: [`recording`](Recording) is the log, `cursor` the position in it and the time there, `stand_ins` the model and the tools
//! that answer from it. `driver` repeats what led to each changeset, in a store in memory. `judge` and `compare` compare the two.
//!
//! What is compared, of every changeset that the engine made:
//!
//! - its reason, and its events in their order: messages, patches, intents, outcomes, denials, suspensions with their codes and values,
//!   decisions, usage and cost, how runs began and ended, including run ids and keys;
//! - the state that it folds into.
//!
//! What is not compared, because it differs legitimately: signers, epochs, process identities, names of blobs, the digest of the
//! configuration, and the expiry of an approval request if the two times are close. That a tool was redefined since it was called is not a
//! difference by itself, but reported ([`Report::redefined`]). Failed snapshots, sandboxes, ledger records, and spawned and settled children are left
//! out.
//!
//! What can't be compared: the prompt. A log has no prompts; a prompt is made from the messages, which are compared, and from the rules and
//! tools, which are not in the log. So the recorded answers are given whatever the prompt would be today. Failed attempts before an answer
//! are one attempt here. A tool result that was too long for a line is given as it was shown.
//!
//! What is done only in part: children are not run again, their call gives its recorded result. Whether one may be spawned is checked
//! against the limits, and one that was refused is ordered again unless the refusal came from outside. The ledger begins empty, so an
//! account that other threads spend from holds its maximum here; money that this thread spends counts as it did. Changesets that only
//! reserve money are skipped.
//!
//! What is given, and not compared: the creation of the thread, changesets that were imported or appended by other programs, what people
//! wrote, and the end of a run whose disk failed.
//!
//! Nothing touches the store that the thread is in. Time and memory are linear in the length of the log.

mod compare;
mod cursor;
mod driver;
mod judge;
mod recording;
mod stand_ins;

use std::sync::Arc;

use selvedge_model::scope::Scopes;
use selvedge_model::{Digest, Model, ThreadId};
use serde::Serialize;

pub use compare::Difference;
pub use recording::{RecordedChangeset, Recording};

use crate::error::{Error, Result};
use crate::redact::Redactor;
use crate::run_config::RunConfig;
use cursor::ReplayCursor;
use driver::Driver;
use judge::Judge;

/// What a recorded thread is run again with.
pub struct ReplayOptions {
    /// The current run configuration of its runs; the model is only asked for its context size, the tools only for their definitions.
    pub work: RunConfig,
    /// A model that answers from the record.
    pub model: Arc<dyn Model>,
    /// The lifetime of each part of the state.
    pub scopes: Scopes,
    /// Removes secrets before they reach a log.
    pub redactor: Redactor,
    /// The version up to which nothing is compared. Everything up to it is taken over as it is, except for a run that is active there: it is
    /// repeated from its beginning, with the recorded answers and decisions. If it diverges before this version, nothing can be compared, and
    /// [`Report::ended_at`] is not above it.
    pub from: Option<u64>,
}

/// The result of a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The thread.
    pub thread_id: ThreadId,
    /// Its last version.
    pub version: u64,
    /// How many changesets were decided again and compared.
    pub compared: u64,
    /// How many were taken over as they are.
    pub from_record: u64,
    /// The differences, in order; only the first hundred.
    pub differences: Vec<Difference>,
    /// How many differences there were.
    #[serde(rename = "differences_count")]
    pub count: u64,
    /// The version at which the two diverged; what follows was not compared.
    pub ended_at: Option<u64>,
    /// The version at which the states first differ.
    pub state_differs_at: Option<u64>,
    /// Tools that were called and have been redefined since.
    pub redefined: Vec<String>,
    /// SHA-256 of the state that the record folds into, as far as it was compared.
    pub state_recorded: Digest,
    /// SHA-256 of the state that the replay folds into.
    pub state_now: Digest,
}

impl Report {
    /// Whether everything was decided as recorded.
    pub fn is_identical(&self) -> bool {
        self.count == 0
    }
}

/// Runs a recorded thread again and compares. On return, the store that the thread is in is unchanged.
pub fn replay(recording: Recording, how: ReplayOptions) -> Result<Report> {
    let version = recording.steps.last().map_or(0, RecordedChangeset::version);
    if let Some(from) = how.from.filter(|from| *from > version) {
        let error = selvedge_store::Error::NoVersion { thread: recording.thread, version: from, latest: version };
        return Err(Error::Store(error));
    }
    let nothing = Digest([0; 32]);
    let report = Report {
        thread_id: recording.thread.clone(),
        version,
        compared: 0,
        from_record: 0,
        differences: Vec::new(),
        count: 0,
        ended_at: None,
        state_differs_at: None,
        redefined: Vec::new(),
        state_recorded: nothing,
        state_now: nothing,
    };
    let tape = Arc::new(ReplayCursor::new(Arc::new(recording)));
    let judge = Judge::new(tape.clone(), how.from, report);
    let mut driver = Driver::new(tape, how, judge);
    driver.drive()?;
    Ok(driver.conclude())
}
