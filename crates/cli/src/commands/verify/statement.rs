//! What was signed: every checkpoint is a statement about all bytes before it.

use selvedge_log::scan::Entry;
use selvedge_model::event::Checkpoint;
use selvedge_model::{CommitKey, Digest, RunId, ThreadId, Timestamp};
use serde::Serialize;

use crate::output::table;
use crate::text::{clean, local};

/// One signed statement: what a checkpoint says.
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
    with: Vec<Mate>,
    epoch: u64,
    settled: bool,
    seq: u64,
}

#[derive(Debug, Serialize)]
struct Mate {
    thread_id: ThreadId,
    version: u64,
}

impl Statement {
    pub(super) fn of(entry: &Entry) -> Option<Self> {
        let (line, said): (_, &Checkpoint) = (entry.lines.last()?, entry.checkpoint()?);
        Some(Self {
            version: said.version,
            reason: said.reason.as_str(),
            key: said.key.clone(),
            run_id: said.run_id.clone(),
            turn: said.turn,
            timestamp: line.timestamp,
            signer: said.signer,
            byte_offset: said.byte_offset,
            hash: said.hash,
            with: said.with.iter().cloned().map(|(thread_id, version)| Mate { thread_id, version }).collect(),
            epoch: said.epoch,
            settled: said.settled,
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

/// The statements as rows, set in under their thread.
pub(super) fn table_of(statements: &[Statement]) -> String {
    let header = ["VERSION", "REASON", "RUN", "TIME (CLAIMED)", "SIGNER", "BYTES", "SHA-256 OF THEM", "WITH"];
    let table = table(&header, &[0, 5], statements.iter().map(Statement::row));
    table.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}
