//! `selvedge append`: appends one changeset, from a program in any language.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use selvedge_log::strict::{self, MAX_LINE_BYTES};
use selvedge_model::limits::whole;
use selvedge_model::{Batch, Changeset, CommitKey, Expect, Manifest, Part, Status, ThreadId};
use selvedge_store::{Backend, Committed, Error};
use selvedge_store_local::Access;
use serde::Serialize;

use crate::commit::commit_within;
use crate::context::Context;
use crate::error::{Failure, Result};

const EXAMPLE: &str = r#"{"reason":"UserMessage","messages":[{"role":"user","content":"hello"}]}"#;

const CHANGESET: &str = r#"A changeset; only "reason" is required:
  {"reason": "UserMessage",
   "messages": [{"id": "m1", "role": "user", "content": "hello"}],
   "patches": [{"ops": [{"op": "set", "path": ["topic"], "value": "tea"}]}],
   "run_id": "r1", "parent_run_id": …, "run_meta": {…}, "turn": 1, "actions": […], "snapshot": {…}}

  reason    UserMessage, AssistantTurnCommitted, ToolResultsCommitted, RunFinished, Reserved,
            ToolIntentCommitted, Lifecycle
  run_meta  metadata of the run run_id; its agent_id must be the thread's
  messages  a message with an id is stored once; one without is always new
  patches   ops are set, delete, append, merge_object, increment, decrement, insert, remove;
            all ops of a patch apply, or none
  snapshot  a state that replaces the thread's, before the patches"#;

/// Append one changeset to a thread and print the new version
///
/// The changeset is one JSON object of at most 8 MiB, from stdin or --file. When the command returns, all of it is signed, durable
/// and visible, or none of it. If the thread is at another version than expected, nothing is appended and the exit code is 5.
///
/// JSON: {"thread_id", "version", "replayed"}; a version conflict has "expected" and "actual" in its error.
#[derive(Debug, clap::Args)]
#[command(after_long_help = CHANGESET)]
pub(crate) struct Args {
    /// The thread: any unique prefix of its id or of its hex suffix
    thread: String,
    /// The version that the thread must be at, or `any`
    #[arg(long, value_name = "N", value_parser = expectation, allow_negative_numbers = true)]
    expect: Expect,
    /// An idempotency key: a changeset that is sent again with the same key is committed once
    #[arg(long)]
    key: Option<CommitKey>,
    /// Read the changeset from FILE instead of stdin
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// How long to wait for the lease of the thread
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    wait: u32,
}

#[derive(Serialize)]
struct Appended<'a> {
    thread_id: &'a ThreadId,
    version: u64,
    replayed: bool,
}

fn expectation(text: &str) -> Result<Expect, String> {
    match text {
        "any" => Ok(Expect::Any),
        number => whole(number).map(Expect::Exact).map_err(|why| format!("neither a version nor `any`: {why}")),
    }
}

pub(crate) fn run(args: Args, context: &Context<'_>) -> Result<()> {
    context.project()?;
    let changeset = read_changeset(args.file.as_deref(), context)?;
    let store = context.open(Access::ReadWrite)?;
    let thread = store.resolve(&args.thread)?;
    check_agent(&changeset, &store.get(&thread)?.manifest)?;
    let part = Part::new(thread.clone(), args.expect, changeset);
    let batch = Batch { key: args.key, ..Batch::of(part) };
    let wait = Duration::from_secs(args.wait.into());
    let committed =
        commit_within(&*store, &batch, wait).map_err(|error| match (&error, successor(&*store, &thread)) {
            (Error::Fold { .. }, Some(next)) => {
                failed(error, &batch).hint(format!("it was continued as `{next}`: `selvedge append {next}`"))
            }
            _ => failed(error, &batch),
        })?;
    context.close(store);
    show(&thread, &committed, context)
}

/// Refuses a run of another agent: a thread and its runs belong to one agent.
fn check_agent(changeset: &Changeset, thread: &Manifest) -> Result<()> {
    let Some(meta) = changeset.run_meta.as_ref().filter(|meta| meta.agent_id != thread.agent_id) else { return Ok(()) };
    let id = &thread.thread_id;
    let own = &thread.agent_id;
    let other = &meta.agent_id;
    let message = format!("`run_meta.agent_id` is `{other}`, and `{id}` belongs to the agent `{own}`");
    let failure = Failure { code: "wrong_agent", ..Failure::usage(message) };
    Err(failure.detail("agent_id", own.as_str()).hint(format!(
        "write `\"agent_id\": \"{own}\"`, or append to a thread of `{other}`: `selvedge thread list --agent {other}`"
    )))
}

/// The end of the chain of a continued thread.
fn successor(store: &dyn Backend, thread: &ThreadId) -> Option<ThreadId> {
    let is_continued = store.get(thread).is_ok_and(|found| found.manifest.status == Status::Continued);
    let end = store.chain(thread).ok().filter(|_| is_continued)?.pop()?.manifest.thread_id;
    (end != *thread).then_some(end)
}

fn failed(error: Error, batch: &Batch) -> Failure {
    match error {
        Error::OutcomeUnknown { .. } if batch.key.is_none() => {
            Failure::from(error).hint("check with `selvedge log`; with `--key`, a retry is safe")
        }
        error => error.into(),
    }
}

fn show(thread: &ThreadId, committed: &Committed, context: &Context<'_>) -> Result<()> {
    let version = committed.version_of(thread).unwrap_or_default();
    if context.output.is_json() {
        return context.output.record(&Appended { thread_id: thread, version, replayed: committed.replayed });
    }
    context.output.text(version)?;
    if committed.replayed {
        context.output.tell("already committed under the same key; nothing was added");
    }
    Ok(())
}

fn read_changeset(file: Option<&Path>, context: &Context<'_>) -> Result<Changeset> {
    // One byte more than allowed, to detect that it is too long.
    let bytes_max = MAX_LINE_BYTES as u64 + 1;
    let Some(path) = file else {
        if io::stdin().is_terminal() {
            context.output.tell("reading a changeset as JSON from the terminal; end it with Ctrl-D");
        }
        return parse(context.stdin(bytes_max)?);
    };
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(bytes_max).read_to_end(&mut bytes));
    read.map_err(|error| Failure::io("read", path, &error))?;
    parse(&bytes)
}

fn parse(bytes: &[u8]) -> Result<Changeset> {
    let hint = format!("a minimal changeset is {EXAMPLE}");
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(Failure::usage("there is no changeset: the input is empty").hint(hint));
    }
    if bytes.len() > MAX_LINE_BYTES {
        let failure = Failure { code: "json_too_long", ..Failure::usage("the changeset is longer than 8 MiB") };
        return Err(failure.hint("put large content into a separate file and refer to it"));
    }
    strict::parse_as(bytes).map_err(|error| {
        let mut failure = Failure::of(&error).hint(hint);
        failure.message = format!("the changeset is invalid: {}", failure.message);
        failure
    })
}
