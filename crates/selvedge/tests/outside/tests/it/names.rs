//! Every type that a call of the façade takes or gives has a name here, and every crate of the project is reached through `selvedge`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use selvedge::{
    Archive, Ask, Builder, CallContext, CallId, Cancel, Choice, Cost, Cursor, Decided, Digest, DirectiveId, Engine,
    Error, Event, Filter, Follow, Input, Job, Kind, Limit, Limits, Line, Message, Money, Outcome, Outcomes, Output,
    Page, Pending, Proof, Reconciled, Recorded, Result, Resumed, Risk, Role, RunEvent, RunId, Selvedge, Status, Stop,
    Stopped, Store, Submitted, Subscription, Summary, Suspended, ThreadFound, ThreadId, ThreadState, ThreadsFound,
    Timestamp, Tool, Value, Watched,
};

/// Compiled and never called: the signatures are what is checked.
#[expect(dead_code, reason = "it only has to compile")]
fn every_call(selvedge: &Selvedge, thread: &ThreadId, call: &CallId, job: Job, input: Input) -> Result<()> {
    let builder: Builder = Selvedge::builder();
    let opened: Result<Selvedge, Error> = builder.open();
    let again: Result<Selvedge> = Selvedge::open(Path::new("."));
    let recovered: &[ThreadId] = selvedge.recovered();
    let notices: Vec<String> = selvedge.take_notices();
    let idle: Pending<bool> = selvedge.shut_down(Duration::ZERO);
    let engine: &Engine = selvedge.engine();
    let store: Arc<dyn Store> = selvedge.store();
    let run: Pending<Outcome> = selvedge.run(job.clone());
    let start: Pending<ThreadId> = selvedge.start(job.clone());
    let create: Pending<ThreadId> = selvedge.create(job);
    let send: Pending<Outcome> = selvedge.send(thread, input.clone());
    let send_as: Pending<Outcome> = selvedge.send_as(thread, "key", input.clone());
    let submit: Pending<()> = selvedge.submit(thread, input.clone());
    let submit_as: Pending<()> = selvedge.submit_as(thread, "key", input.clone());
    let answered: Pending<Vec<ThreadId>> = selvedge.answer_abandoned();
    let resume: Pending<Outcome> = selvedge.resume(thread, input.clone());
    let wait: Pending<Outcome> = selvedge.wait(thread);
    let wait_all: Pending<Outcomes> = selvedge.wait_all(&[], Duration::MAX);
    let cancel: Pending<Stopped> = selvedge.cancel(thread);
    let kill: Pending<Stopped> = selvedge.kill(thread);
    let decide: Pending<Decided> = selvedge.decide(thread, call, Choice::Unknown, "");
    let status: Pending<Outcome> = selvedge.status(thread);
    let messages: Pending<Vec<Message>> = selvedge.messages(thread);
    let threads: Pending<Page<Summary>> = selvedge.threads(Filter::default(), None::<Cursor>, 1);
    let find: Pending<ThreadId> = selvedge.find("");
    let search: Pending<ThreadsFound> = selvedge.search("", 1);
    let subscription: Subscription = selvedge.subscribe(Watched::All);
    let follow: Follow = selvedge.follow(thread, 0);
    let verify: Pending<Proof> = selvedge.verify(thread);
    let export: Pending<Archive> = selvedge.export(thread, "");
    let submitted: std::result::Result<Submitted, selvedge::EngineError> =
        selvedge.engine().submit_resume(thread, input, engine_work(), &Cancel::new());
    _ = (opened, again, recovered, notices, idle, engine, store, run, start, create, send, submit, resume, wait);
    _ = (wait_all, cancel, kill, decide, status, messages, threads, find, search, subscription);
    _ = (follow, verify, export);
    _ = (submitted, send_as, submit_as, answered);
    Ok(())
}

fn engine_work() -> selvedge::RunConfig {
    unreachable!("nothing here is called")
}

/// What the types give has names too.
#[expect(dead_code, reason = "it only has to compile")]
fn every_part(outcome: Outcome, stopped: Stopped, decided: Decided, proof: Proof, error: Error, context: CallContext) {
    let state: ThreadState = outcome.status;
    let cost: Cost = outcome.cost;
    let suspended: Option<Suspended> = outcome.suspended;
    let asks: Vec<Ask> = outcome.asks;
    let resumed: Option<Resumed> = outcome.resumed;
    let outputs: Option<Value> = outcome.outputs;
    let directive: Option<DirectiveId> = outcome.directive;
    let run: Option<RunId> = outcome.run_id;
    let spend: Money = cost.spend;
    let status: Status = stopped.status;
    let recorded: Recorded = decided.recorded;
    let mode: selvedge::model::event::ResumeMode = decided.mode;
    let signers: Vec<(Digest, u64)> = proof.signers;
    let kind: Kind = error.kind();
    let cancel: &Cancel = context.cancel();
    let limits: Limits = Limit::Turns(1).into();
    let tool: Tool = Tool::function("x", "", Value::Null, |_: Value, _: CallContext| Output::text(""));
    let tool = tool.risk(Risk::Safe).reconcile(|_: &CallContext| Reconciled::Unknown);
    _ = (state, suspended, asks, resumed, outputs, directive, run, spend, status, recorded, mode, signers, kind);
    _ = (cancel, limits, tool);
    let event = |event: RunEvent| drop(event);
    let line = |line: Line| -> (Event, Timestamp) { (line.event, line.timestamp) };
    let found = |found: ThreadFound| -> ThreadId { found.thread_id };
    let stop = Stop::Killed;
    _ = (event, line, found, stop, Role::User);
}

/// The crates below, whole: what no name was given to above is reached through them.
#[test]
fn every_crate_below_is_reached_through_the_facade() {
    type Below = (
        selvedge::engine::RunConfig,
        selvedge::items::Config,
        selvedge::log::Signer,
        selvedge::model::Manifest,
        selvedge::providers::Scripted,
        selvedge::store::Lease,
        selvedge::store_local::Options,
        selvedge::tools::Schema,
    );
    assert!(size_of::<Below>() > 0);
}
