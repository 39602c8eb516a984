//! Names of older documents: the tools that act on threads, as permissions name them.
//!
//! ```text
//! rye.agent.threads.*                                   tool.threads.*
//! rye.execute.tool.rye.agent.threads.thread_directive   tool.threads.spawn
//! rye.execute.tool.rye.agent.threads.orchestrator       every other `tool.threads.…`, one for each operation
//! ```

use super::{Capability, ROOT, Segment};

/// The thread tools that are operations of the older `orchestrator`.
const OPERATIONS: [&str; 11] =
    ["cancel", "chain", "handoff", "kill", "list", "read", "results", "resume", "search", "status", "wait"];
/// The last word of a token that stands for all of them.
const ORCHESTRATOR: &str = "orchestrator";

/// The words of a token, whose root is ours, with the older names of the thread tools replaced.
pub(super) fn translated(words: Vec<&str>) -> Vec<&str> {
    let rest = match words.as_slice() {
        [ROOT, "execute", "tool", "rye" | ROOT, "agent", rest @ ..] => rest,
        [ROOT, "agent", rest @ ..] => rest,
        _ => return words,
    };
    let mut ours = vec![ROOT, "execute", "tool", "threads"];
    match rest {
        ["*"] | ["threads", "*"] => ours.push("*"),
        ["threads", "thread_directive"] => ours.push("spawn"),
        ["threads", ORCHESTRATOR, ..] => ours.push(ORCHESTRATOR),
        ["threads", rest @ ..] if !rest.is_empty() => ours.extend(rest),
        _ => return words,
    }
    ours
}

/// The tokens that one token of a set stands for.
pub(super) fn expanded(token: Capability) -> Vec<Capability> {
    let is = |segment: &Segment, word: &str| matches!(segment, Segment::Is(known) if known == word);
    match token.segments.as_slice() {
        [.., threads, last] if is(threads, "threads") && is(last, ORCHESTRATOR) && !token.is_open => {
            let operation = |name: &&str| {
                let mut segments = token.segments.clone();
                segments.pop();
                segments.push(Segment::Is((*name).to_owned()));
                Capability { segments, is_open: false }
            };
            OPERATIONS.iter().map(operation).collect()
        }
        _ => vec![token],
    }
}
