//! Signed checkpoints: each is a statement about all bytes before it.

use selvedge_log::scan::ScannedChangeset;
use selvedge_model::event::Checkpoint;
use selvedge_model::{CommitKey, Digest, RunId, ThreadId, Timestamp};
use serde::Serialize;

use crate::output::table;
use crate::text::{clean, local};

/// The statement of one checkpoint.
#[derive(Debug, Serialize)]
pub(super) struct Statement {
    version: u64,
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<CommitKey>,
    run_id: Option<RunId>,
    turn: Option<u64>,
    timestamp: Timestamp,
    signer: Digest,
    byte_offset: u64,
    hash: Digest,
    with: Vec<CommittedThread>,
    epoch: u64,
    settled: bool,
    seq: u64,
}

#[derive(Debug, Serialize)]
struct CommittedThread {
    thread_id: ThreadId,
    version: u64,
}

impl Statement {
    pub(super) fn of(entry: &ScannedChangeset) -> Option<Self> {
        let line = entry.lines.last()?;
        let checkpoint: &Checkpoint = entry.checkpoint()?;
        Some(Self {
            version: checkpoint.version,
            reason: checkpoint.reason.as_str(),
            key: checkpoint.key.clone(),
            run_id: checkpoint.run_id.clone(),
            turn: checkpoint.turn,
            timestamp: line.timestamp,
            signer: checkpoint.signer,
            byte_offset: checkpoint.byte_offset,
            hash: checkpoint.hash,
            with: checkpoint
                .with
                .iter()
                .cloned()
                .map(|(thread_id, version)| CommittedThread { thread_id, version })
                .collect(),
            epoch: checkpoint.epoch,
            settled: checkpoint.settled,
            seq: line.seq,
        })
    }

    fn row(&self) -> Vec<String> {
        let with = self.with.iter().map(|mate| format!("{} at {}", mate.thread_id, mate.version)).collect::<Vec<_>>();
        vec![
            self.version.to_string(),
            self.reason.to_owned(),
            self.run_id.as_ref().map_or("-".to_owned(), |run| clean(run.as_str())),
            local(self.timestamp),
            self.signer.short(),
            self.byte_offset.to_string(),
            self.hash.short(),
            with.join(", "),
        ]
    }
}

/// The statements as an indented table.
pub(super) fn table_of(statements: &[Statement]) -> String {
    let header = ["VERSION", "REASON", "RUN", "TIME (CLAIMED)", "SIGNER", "BYTES", "SHA-256", "WITH"];
    let table = table(&header, &[0, 5], statements.iter().map(Statement::row));
    table.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}
