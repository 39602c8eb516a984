//! Usage records: what each run used, for statistics. They are derived from the logs and decide nothing; budgets are in the ledger.
//!
//! A run has one record for each time it ended or was suspended, and so has a call for a title, which is booked to the system. The
//! thread and the version of the commit name a record, so deriving it twice gives the same record.

use std::collections::BTreeMap;

use selvedge_log::Line;
use selvedge_model::event::TurnUsage;
use selvedge_model::limits::Cost;
use selvedge_model::money;
use selvedge_model::run::RunRecorded;
use selvedge_model::{AgentId, Classify, DirectiveId, Event, Money, RunId, Status, ThreadId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::contract::{FeedEntry, Logs};
use crate::error::Result;

/// The agent that calls of the system itself are booked to.
pub const SYSTEM: &str = "_system";
/// The origin of a record of a call for a title.
pub const TITLE: &str = "title";
/// How many lines are read at once on the way back to the beginning of a run.
const LINES_AT_ONCE: u64 = 256;

/// What a number of calls used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Turns.
    #[serde(default)]
    pub turns: u64,
    /// Tokens sent.
    #[serde(default)]
    pub input_tokens: u64,
    /// Tokens received.
    #[serde(default)]
    pub output_tokens: u64,
    /// Of the tokens sent, those read from a provider's cache.
    #[serde(default)]
    pub cache_read_tokens: u64,
    /// Of the tokens sent, those written to a provider's cache.
    #[serde(default)]
    pub cache_write_tokens: u64,
    /// Dollars.
    #[serde(default, with = "money::decimal")]
    pub spend: Money,
    /// The part of it that was charged at a bound, because the provider reported no usage.
    #[serde(default, skip_serializing_if = "is_nothing", with = "money::decimal")]
    pub spend_unknown: Money,
    /// Milliseconds of running time.
    #[serde(default)]
    pub duration_ms: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it by reference")]
fn is_nothing(money: &Money) -> bool {
    money.is_zero()
}

/// The usage of one run, as a line of `usage.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UsageRecord {
    /// When it ended.
    pub timestamp: Timestamp,
    /// The thread.
    pub thread_id: ThreadId,
    /// The version whose commit has it; with the thread, the name of this record.
    pub version: u64,
    /// The run; absent for a call of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// The agent; [`SYSTEM`] for a call of the system.
    pub agent_id: AgentId,
    /// The directive of the thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directive: Option<DirectiveId>,
    /// What started the run: `user`, `subagent` and so on; [`TITLE`] for a title.
    pub origin: String,
    /// The status of the thread after it.
    pub status: Status,
    /// Why the run ended, as a stable code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// What it used.
    #[serde(flatten)]
    pub used: Used,
    /// What each model used of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, Used>,
}

impl Used {
    /// The usage of one turn.
    fn of_turn(turn: &TurnUsage) -> Self {
        let used = Self::of_cost(&turn.cost);
        Self { cache_read_tokens: turn.cache_read_tokens, cache_write_tokens: turn.cache_write_tokens, ..used }
    }

    fn of_cost(cost: &Cost) -> Self {
        Self {
            turns: cost.turns,
            input_tokens: cost.input_tokens,
            output_tokens: cost.output_tokens,
            spend: cost.spend,
            spend_unknown: cost.spend_unknown,
            duration_ms: cost.duration_ms,
            ..Self::default()
        }
    }

    /// Adds another usage.
    pub fn add(&mut self, other: &Self) {
        self.turns = self.turns.saturating_add(other.turns);
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cache_read_tokens = self.cache_read_tokens.saturating_add(other.cache_read_tokens);
        self.cache_write_tokens = self.cache_write_tokens.saturating_add(other.cache_write_tokens);
        self.spend = self.spend.saturating_add(other.spend);
        self.spend_unknown = self.spend_unknown.saturating_add(other.spend_unknown);
        self.duration_ms = self.duration_ms.saturating_add(other.duration_ms);
    }

    /// What is left of it without another usage.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self {
            turns: self.turns.saturating_sub(other.turns),
            input_tokens: self.input_tokens.saturating_sub(other.input_tokens),
            output_tokens: self.output_tokens.saturating_sub(other.output_tokens),
            cache_read_tokens: self.cache_read_tokens.saturating_sub(other.cache_read_tokens),
            cache_write_tokens: self.cache_write_tokens.saturating_sub(other.cache_write_tokens),
            spend: self.spend.saturating_sub(other.spend),
            spend_unknown: self.spend_unknown.saturating_sub(other.spend_unknown),
            duration_ms: self.duration_ms.saturating_sub(other.duration_ms),
        }
    }
}

impl UsageRecord {
    /// What names the record.
    pub fn key(&self) -> (ThreadId, u64) {
        (self.thread_id.clone(), self.version)
    }
}

/// The record of a commit, if it ended a run or has a call for a title.
pub fn of_commit(logs: &dyn Logs, entry: &FeedEntry) -> Result<Option<UsageRecord>> {
    let count = usize::try_from(entry.lines).unwrap_or(usize::MAX);
    for line in logs.read(&entry.thread, entry.first_line, count)? {
        match &line.event {
            Event::RunFinished(run) => return of_run(logs, entry, &line, run).map(Some),
            Event::ManifestChanged(changed) => {
                if let Some(turn) = &changed.title_usage {
                    return of_title(logs, entry, &line, turn).map(Some);
                }
            }
            _ => {}
        }
    }
    Ok(None)
}

fn of_run(logs: &dyn Logs, entry: &FeedEntry, line: &Line, run: &RunRecorded) -> Result<UsageRecord> {
    let mut used = Used::of_cost(&run.meta.total_cost());
    let mut models: BTreeMap<String, Used> = BTreeMap::new();
    for turn in turns_before(logs, &entry.thread, line.seq)? {
        let of_turn = Used::of_turn(&turn);
        used.cache_read_tokens += of_turn.cache_read_tokens;
        used.cache_write_tokens += of_turn.cache_write_tokens;
        models.entry(turn.model).or_default().add(&of_turn);
    }
    Ok(UsageRecord {
        timestamp: line.timestamp,
        thread_id: entry.thread.clone(),
        version: entry.version,
        run_id: Some(run.run_id.clone()),
        agent_id: run.meta.agent_id.clone(),
        directive: directive(logs, &entry.thread)?,
        origin: run.meta.origin.clone(),
        status: run.meta.thread_status(),
        code: run.meta.termination_code.clone(),
        used,
        models,
    })
}

fn of_title(logs: &dyn Logs, entry: &FeedEntry, line: &Line, turn: &TurnUsage) -> Result<UsageRecord> {
    let used = Used::of_turn(turn);
    Ok(UsageRecord {
        timestamp: line.timestamp,
        thread_id: entry.thread.clone(),
        version: entry.version,
        run_id: None,
        agent_id: AgentId::new(SYSTEM).unwrap_or_else(|error| unreachable!("{error}")),
        directive: directive(logs, &entry.thread)?,
        origin: TITLE.to_owned(),
        status: Status::Completed,
        code: None,
        models: BTreeMap::from([(turn.model.clone(), used.clone())]),
        used,
    })
}

fn directive(logs: &dyn Logs, thread: &ThreadId) -> Result<Option<DirectiveId>> {
    let first = logs.read(thread, 0, 1)?.into_iter().next();
    Ok(first.and_then(|line| match line.event {
        Event::ThreadCreated(created) => created.thread.directive,
        _ => None,
    }))
}

/// The turns before a line, back to where its run began or was suspended before.
fn turns_before(logs: &dyn Logs, thread: &ThreadId, line: u64) -> Result<Vec<TurnUsage>> {
    let mut turns = Vec::new();
    let mut end = line;
    while end > 0 {
        let begin = end.saturating_sub(LINES_AT_ONCE);
        let lines = logs.read(thread, begin, usize::try_from(end - begin).unwrap_or(usize::MAX))?;
        for line in lines.into_iter().rev() {
            match line.event {
                Event::Usage(turn) => turns.push(turn),
                Event::RunStarted(_) | Event::RunFinished(_) => return Ok(turns),
                _ => {}
            }
        }
        end = begin;
    }
    Ok(turns)
}

/// Whether a log is there and could not be read now, as by a disk that fails for a moment. A disk says the same of what it has lost for good,
/// so the other threads must not wait for it.
fn is_passing(error: &crate::Error) -> bool {
    // `InvalidInput`: something that is not a plain file is in its place.
    use std::io::ErrorKind::{InvalidData, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied};
    let crate::Error::Io { source, .. } = error else { return false };
    // Of these, an operator has to mend the cause.
    let is_lasting = matches!(
        source.kind(),
        NotFound | PermissionDenied | IsADirectory | NotADirectory | InvalidData | InvalidInput
    );
    !is_lasting
}

/// What was derived from a number of commits.
#[derive(Debug, Default)]
pub struct DerivedUsage {
    /// The records.
    pub records: Vec<UsageRecord>,
    /// Commits whose logs can't be read.
    pub unreadable: u64,
    /// The first error of a log that may be readable later. The commits have to be looked at again; the records of the others are there.
    pub failed: Option<crate::Error>,
}

/// The records of these commits. A thread that was deleted meanwhile has none.
pub fn of_commits(
    logs: &dyn Logs,
    entries: &[FeedEntry],
    mut is_known: impl FnMut(&ThreadId, u64) -> bool,
) -> DerivedUsage {
    let mut derived = DerivedUsage::default();
    for entry in entries {
        if is_known(&entry.thread, entry.version) {
            continue;
        }
        match of_commit(logs, entry) {
            Ok(found) => derived.records.extend(found),
            Err(crate::Error::Deleted(_) | crate::Error::NoThread(_)) => {}
            Err(error) if error.retryable() || is_passing(&error) => _ = derived.failed.get_or_insert(error),
            Err(_) => derived.unreadable += 1,
        }
    }
    derived
}

/// What usage is summed up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// By agent.
    Agent,
    /// By model.
    Model,
    /// By thread.
    Thread,
    /// By day, as the caller names days.
    Day,
}

/// The usage of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GroupUsage {
    /// How many runs, without calls of the system.
    pub runs: u64,
    /// What they used.
    #[serde(flatten)]
    pub used: Used,
}

/// Sums up records.
#[derive(Clone, Debug)]
pub struct UsageSummary<D> {
    group: Group,
    day: D,
    /// The groups, by their names.
    pub groups: BTreeMap<String, GroupUsage>,
    /// All of them together.
    pub total: GroupUsage,
}

/// What a run used without a known model, in a summary by model.
pub const NO_MODEL: &str = "unknown";

impl<D: Fn(Timestamp) -> String> UsageSummary<D> {
    /// An empty summary; `day` names the day of a time.
    pub fn new(group: Group, day: D) -> Self {
        Self { group, day, groups: BTreeMap::new(), total: GroupUsage::default() }
    }

    /// Adds a record.
    pub fn add(&mut self, record: &UsageRecord) {
        let runs = u64::from(record.run_id.is_some());
        let mut put = |name: String, used: &Used| {
            let group = self.groups.entry(name).or_default();
            group.runs += runs;
            group.used.add(used);
        };
        match self.group {
            Group::Agent => put(record.agent_id.to_string(), &record.used),
            Group::Thread => put(record.thread_id.to_string(), &record.used),
            Group::Day => put((self.day)(record.timestamp), &record.used),
            Group::Model => {
                let mut rest = record.used.clone();
                for (model, used) in &record.models {
                    put(model.clone(), used);
                    rest = rest.without(used);
                }
                // The running time of a run is not that of its models.
                rest.duration_ms = 0;
                if rest != Used::default() || record.models.is_empty() {
                    put(NO_MODEL.to_owned(), &rest);
                }
            }
        }
        self.total.runs += runs;
        self.total.used.add(&record.used);
    }
}
