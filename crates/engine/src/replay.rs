//! A recorded thread again, without network and without tools: does the engine of today, with the directive, the tools and the
//! configuration of today, decide as is recorded?
//!
//! In reading order: [`recording`](Recording) is the log, `tape` the place in it and the time there, `outside` the model and the
//! tools that answer from it, `driver` does again what led to each changeset, in a store in memory, and `judge` and `compare` lay the
//! two side by side.
//!
//! What is compared, of every changeset that the engine made:
//!
//! - why it was committed, and its events in their order: messages, patches, intents, outcomes, denials, suspensions with their codes
//!   and values, decisions, usage with what it cost, how runs began and ended, run ids and keys included;
//! - the state that it folds into.
//!
//! What is not, because it differs legitimately: who signed, epochs, process identities, names of blobs, the digest of the
//! configuration, and the moment at which an ask expires where the two are next to each other. That a tool is defined otherwise than
//! when it was called is no difference by itself, but said ([`Report::redefined`]). That a snapshot could not be saved, what the ledger
//! recorded, and that children were started and settled, is left out.
//!
//! What can't be: the prompt. A log has no prompts; what a model was shown is made from the messages, which are compared, and from
//! the rules and tools, which it does not hold. So the recorded answers are given whatever the model would be told today. Attempts of
//! the model that failed before an answer are one attempt here. An answer of a tool that was too long for a line is given as it was
//! shown.
//!
//! What is done only in part: children are not run again, their call answers what it answered; whether one may be started is asked of
//! the ceilings, and one that was not started is ordered again unless the outside kept it from being started. The ledger begins empty, so an account
//! that other threads spend from holds here what it may hold at most; money that this thread spends counts as it did. Changesets
//! that only set money aside are passed over.
//!
//! What is given, and not compared: the birth of the thread, what was imported or appended by others, what people said, and how a run
//! ended whose disk failed.
//!
//! Nothing of it touches the store that the thread is in. Cost and memory grow with the log, and no faster.

mod compare;
mod driver;
mod judge;
mod outside;
mod recording;
mod tape;

use std::sync::Arc;

use selvedge_model::scope::Scopes;
use selvedge_model::{Digest, Model, ThreadId};
use serde::Serialize;

pub use compare::Difference;
pub use recording::{Recording, Step};

use crate::assignment::Assignment;
use crate::error::{Error, Result};
use crate::redact::Redactor;
use driver::Driver;
use judge::Judge;
use tape::Tape;

/// With what a recorded thread is run again.
pub struct How {
    /// What its runs are done with today; of the model only what it can be given is asked, of the tools only what they are.
    pub work: Assignment,
    /// A model that answers from the record.
    pub model: Arc<dyn Model>,
    /// How long what stands in a state lives.
    pub scopes: Scopes,
    /// What must never reach a log.
    pub redactor: Redactor,
    /// The version up to which nothing is compared. Everything up to there is taken over as it is, except of a run that goes on there: it
    /// is done again from its beginning, with what the model, the tools and people said. If it takes another way before this version,
    /// nothing can be compared, and [`Report::ended_at`] is not above it.
    pub from: Option<u64>,
}

/// What became of a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The thread.
    pub thread_id: ThreadId,
    /// Its last version.
    pub version: u64,
    /// How many changesets were decided again and compared.
    pub compared: u64,
    /// How many were taken over as they are.
    pub given: u64,
    /// Everything that came out otherwise, in order; only the first hundred.
    pub differences: Vec<Difference>,
    /// How many there were.
    #[serde(rename = "differences_count")]
    pub count: u64,
    /// The version at which the two could not be laid side by side any more; what follows was not compared.
    pub ended_at: Option<u64>,
    /// The version at which the states first differ.
    pub state_differs_at: Option<u64>,
    /// Tools that were called and are defined otherwise today.
    pub redefined: Vec<String>,
    /// SHA-256 of the state that the record folds into, as far as it was compared.
    pub state_recorded: Digest,
    /// SHA-256 of the state that came now.
    pub state_now: Digest,
}

impl Report {
    /// Whether everything was decided as is recorded.
    pub fn is_identical(&self) -> bool {
        self.count == 0
    }
}

/// Runs a recorded thread again and compares.
pub fn replay(recording: Recording, how: How) -> Result<Report> {
    let version = recording.steps.last().map_or(0, Step::version);
    if let Some(from) = how.from.filter(|from| *from > version) {
        let error = selvedge_store::Error::NoVersion { thread: recording.thread, version: from, latest: version };
        return Err(Error::Store(error));
    }
    let nothing = Digest([0; 32]);
    let report = Report {
        thread_id: recording.thread.clone(),
        version,
        compared: 0,
        given: 0,
        differences: Vec::new(),
        count: 0,
        ended_at: None,
        state_differs_at: None,
        redefined: Vec::new(),
        state_recorded: nothing,
        state_now: nothing,
    };
    let tape = Arc::new(Tape::new(Arc::new(recording)));
    let judge = Judge::new(tape.clone(), how.from, report);
    let mut driver = Driver::new(tape, how, judge);
    driver.drive()?;
    Ok(driver.conclude())
}
