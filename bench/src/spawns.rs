//! Spawns: how long it takes until a child asks its model, in the parent's process or in one of its own, and the cost of a child of one
//! turn.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use selvedge_engine::spawn::{Children, NewChild, Spawning};
use selvedge_engine::wait::wait_threads;
use selvedge_engine::{Engine, Input, RunConfig};
use selvedge_model::limits::Limits;
use selvedge_model::tool::{Started, ToolKind};
use selvedge_model::{Call, Cancel, Manifest, Message, Money, NewThread, Price, Reason, Role, Status, ThreadId};
use selvedge_store::Registry;
use selvedge_store_local::Access;
use selvedge_tools::{Detached, ProcessGroups};
use serde_json::{Value, json};

use crate::bare::Bare;
use crate::chains::now;
use crate::home::{Home, changesets};
use crate::measure::{Spread, in_turns, lap, settle, timed};
use crate::moments::{Happened, Moments, RecordingModel, RecordingStore, Who, micros};
use crate::report::{Goal, Report, Unit};
use crate::turns::agent::{assigned, plain};
use crate::turns::engine;
use crate::turns::timed::Timed;
use crate::{Outcome, Plan, child};

/// The name of the tool that starts a child.
const SPAWN: &str = "spawn";

pub(crate) fn measure(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let home = Home::make(&folder.join("store"))?;
    let store = Arc::new(Timed::new(home.open(Access::ReadWrite)?));
    let moments = Moments::default();
    let noted = moments.clone();
    let engine = engine(&home, Arc::new(RecordingStore::new(store.clone(), move |what| noted.note(what))))?;
    in_process(folder, &engine, &store, &moments, plan, report)?;
    detached(&home, &engine, &store, &moments, plan, report)
}

fn in_process(
    folder: &Path,
    engine: &Engine,
    store: &Timed,
    moments: &Moments,
    plan: Plan,
    report: &mut Report,
) -> Outcome<()> {
    let children = if plan.quick { 20 } else { 100 };
    let warm = family(engine, store, moments, children)?;
    let mut bare = Bare::make(&folder.join("bare"), written(store, &warm.thread)?)?;
    let floor = |_: &Family| lap(children, || timed(|| bare.append()));
    let rounds = in_turns(plan.rounds, || family(engine, store, moments, children), floor)?;
    let all = |figures: fn(&Family) -> &[f64]| {
        Spread::of(&rounds.iter().flat_map(|(family, _)| figures(family).iter().copied()).collect::<Vec<_>>())
    };
    let what = "a spawn: the parent's call to its child's first call";
    report.figure("spawn_us", what, Unit::Micros, &all(|family| &family.until_asked_us), Goal::None);
    report.figure(
        "spawn_commit_us",
        "  of that the one batch",
        Unit::Micros,
        &all(|family| &family.batches_us),
        Goal::None,
    );
    let median = |figures: &[f64]| Spread::of(figures).median;
    let ratio = Spread::over(&rounds, |(family, floor)| median(&family.batches_us) / floor.median());
    let what = "  the batch ÷ a bare append + fdatasync of as many bytes";
    report.figure("spawn_commit_ratio", what, Unit::Times, &ratio, Goal::None);
    let ratio = Spread::over(&rounds, |(family, _)| median(&family.spawning_us) / median(&family.plain_us));
    report.figure("spawn_turns", "a turn with a child of one turn ÷ a plain turn", Unit::Times, &ratio, Goal::None);
    report.figure("spawn_turn_us", "  with a child", Unit::Micros, &all(|family| &family.spawning_us), Goal::None);
    report.figure("spawn_plain_us", "  a plain turn", Unit::Micros, &all(|family| &family.plain_us), Goal::None);
    report.method(
        "spawns",
        format!(
            "parents of {children} children, one after the other, in turns with as many calls of a pure tool; each child gets money from its \
             parent, has one turn, gives back what is left and is waited for; from the acknowledgement of the parent's call to the child's \
             model being asked; a turn is the time between two questions to the parent's model; bare appends of the bytes that earlier \
             batches wrote, after each family, ratio of medians per round"
        ),
    );
    Ok(())
}

/// The measurements of a parent and its children.
struct Family {
    thread: ThreadId,
    until_asked_us: Vec<f64>,
    spawning_us: Vec<f64>,
    plain_us: Vec<f64>,
    batches_us: Vec<f64>,
}

fn family(engine: &Engine, store: &Timed, moments: &Moments, children: usize) -> Outcome<Family> {
    let calls = (0..2 * children).map(|turn| (if turn % 2 == 0 { "look" } else { SPAWN }, json!({}))).collect();
    let model = RecordingModel::new(Who::Itself, "Let me see.", calls, moments);
    let work = parent(Arc::new(model), Arc::new(OneTurnChildren { moments: moments.clone(), outside: None }))?;
    let thread = engine.create(NewThread::of(work.agent_id.clone()), Vec::new())?;
    settle();
    drop(store.take_batches());
    drop(moments.take());
    engine.send(&thread, Input::text("go"), &work, &Cancel::new(), &mut |_| {})?;
    let batches_us = store.take_batches();
    let all = moments.take();
    let mut found =
        Family { thread, until_asked_us: Vec::new(), spawning_us: Vec::new(), plain_us: Vec::new(), batches_us };
    let asked: Vec<usize> = (0..all.len()).filter(|place| all[*place].0 == Happened::Asked(Who::Itself)).collect();
    for turn in asked.windows(2) {
        let whole = micros(&all[turn[0]], &all[turn[1]]);
        let inside = &all[turn[0]..turn[1]];
        let is = |wanted: Happened| inside.iter().find(|(what, _)| *what == wanted);
        match (is(Happened::Committed(Reason::AssistantTurnCommitted)), is(Happened::Asked(Who::Child))) {
            (Some(called), Some(begun)) => {
                found.until_asked_us.push(micros(called, begun));
                found.spawning_us.push(whole);
            }
            _ => found.plain_us.push(whole),
        }
    }
    if found.until_asked_us.len() != children {
        return Err(format!("{} children of {children} were seen to begin", found.until_asked_us.len()).into());
    }
    Ok(found)
}

/// The bytes that the batches of a parent wrote: its own changeset and the child's first.
fn written(store: &Timed, parent: &ThreadId) -> Outcome<Vec<Vec<u8>>> {
    let all = |thread: &ThreadId| -> Outcome<Vec<Vec<u8>>> {
        Ok(changesets(&fs::read(store.inner().thread_folder(thread).join("transcript.jsonl"))?))
    };
    let is_spawn = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).contains(r#""event_type":"child_spawned""#);
    let own: Vec<Vec<u8>> = all(parent)?.into_iter().filter(is_spawn).collect();
    let mut both = Vec::new();
    for (own, child) in own.iter().zip(store.children(parent)?) {
        let births = all(&child.manifest.thread_id)?;
        both.push([&own[..], births.first().ok_or("a child of the bench has no log")?].concat());
    }
    Ok(both)
}

/// Detached children: this program, started again behind a gate.
fn detached(
    home: &Home,
    engine: &Engine,
    store: &Timed,
    moments: &Moments,
    plan: Plan,
    report: &mut Report,
) -> Outcome<()> {
    let mut until_asked = Vec::new();
    let mut at_gate = Vec::new();
    let nothing = child::nothing(plan.starts)?;
    for _ in 0..plan.starts {
        let outside = Arc::new(Outside { folder: home.folder().to_owned(), gates_ms: Mutex::default() });
        let model = RecordingModel::new(Who::Itself, "Let me see.", vec![(SPAWN, json!({"detached": true}))], moments);
        let nursery = OneTurnChildren { moments: moments.clone(), outside: Some(outside.clone()) };
        let work = parent(Arc::new(model), Arc::new(nursery))?;
        let thread = engine.create(NewThread::of(work.agent_id.clone()), Vec::new())?;
        moments.take();
        engine.send(&thread, Input::text("go"), &work, &Cancel::new(), &mut |_| {})?;
        let is_call = |(what, _): &&(Happened, Instant)| *what == Happened::Committed(Reason::AssistantTurnCommitted);
        let called = moments.take().iter().find(is_call).map(|(_, at)| on_shared_clock(at));
        let child = store.children(&thread)?.pop().ok_or("a parent of the bench has no child")?.manifest.thread_id;
        let waited = wait_threads(
            store,
            store.inner().trust(),
            &ProcessGroups,
            std::slice::from_ref(&child),
            Duration::from_secs(60),
        )?;
        if !waited.success {
            return Err(format!("a child of the bench came to nothing: {waited:?}").into());
        }
        let asked: f64 = fs::read_to_string(asked_file(home.folder(), &child))?.trim().parse()?;
        until_asked.push(asked - called.ok_or("a parent of the bench made no call")?);
        at_gate.append(&mut outside.gates_ms.lock().unwrap_or_else(PoisonError::into_inner));
    }
    let what = "a spawn of a process: the parent's call to its child's first call";
    report.figure("spawn_process_ms", what, Unit::Millis, &Spread::of(&until_asked), Goal::None);
    report.figure(
        "spawn_gate_ms",
        "  of that until it stands at its gate",
        Unit::Millis,
        &Spread::of(&at_gate),
        Goal::None,
    );
    let idle = Spread::of(&nothing);
    let ratios: Vec<f64> = until_asked.iter().map(|took| took / idle.median).collect();
    let what = "  ÷ a process that does nothing, start to end";
    report.figure("spawn_process_ratio", what, Unit::Times, &Spread::of(&ratios), Goal::None);
    report.method(
        "spawns of processes",
        format!(
            "{} children, one after the other, each this program started again behind its gate, its identity committed with its birth, then \
             let go: it opens the store, takes its thread and asks its model; times on the clock that all processes share",
            plan.starts
        ),
    );
    Ok(())
}

/// The work of a child's process: it runs its thread, and records when its model is asked.
pub(crate) fn run_child(folder: &Path, thread: &str) -> Outcome<Value> {
    let home = Home::at(folder)?;
    let thread = ThreadId::new(thread)?;
    let moments = Moments::default();
    let written = Arc::new(Mutex::new(Ok(())));
    let asked = moments.clone();
    let file = asked_file(folder, &thread);
    let outcome = written.clone();
    // Written before its end is committed, so that the waiting parent finds it.
    let note = move |what| {
        if let (Happened::Committed(Reason::AssistantTurnCommitted), [(_, asked)]) = (what, &asked.take()[..]) {
            let done = fs::write(&file, on_shared_clock(asked).to_string());
            *outcome.lock().unwrap_or_else(PoisonError::into_inner) = done;
        }
    };
    let engine = engine(&home, Arc::new(RecordingStore::new(Arc::new(home.open(Access::ReadWrite)?), note)))?;
    let ended = engine.resume(&thread, Input::nothing(), &childs(&moments)?, &Cancel::new(), &mut |_| {})?;
    std::mem::replace(&mut *written.lock().unwrap_or_else(PoisonError::into_inner), Ok(()))?;
    Ok(json!({"completed": ended.status == Status::Completed}))
}

/// An instant of this process on the clock that all processes share, in milliseconds.
fn on_shared_clock(moment: &Instant) -> f64 {
    now() - moment.elapsed().as_secs_f64() * 1e3
}

fn asked_file(folder: &Path, child: &ThreadId) -> PathBuf {
    folder.join(format!("asked-{child}"))
}

fn parent(model: Arc<RecordingModel>, children: Arc<OneTurnChildren>) -> Outcome<RunConfig> {
    let mut work = assigned(model)?;
    work.tools.push(Arc::new(plain(SPAWN).of_kind(ToolKind::Child)));
    work.spawning = Some(Spawning { children, at_once: 8, check_parent: Arc::new(|_| Ok(())) });
    // The models cost nothing, but the parent's ceiling applies to its children, so every child gets an amount.
    work.price = Some(Price::default());
    work.limits.spend = Some(Money::from_nanos(1_000_000_000_000)?);
    Ok(work)
}

fn childs(moments: &Moments) -> Outcome<RunConfig> {
    let mut work = assigned(Arc::new(RecordingModel::new(Who::Child, "Done.", Vec::new(), moments)))?;
    work.price = Some(Price::default());
    Ok(work)
}

/// Has one kind of child: with one turn.
struct OneTurnChildren {
    moments: Moments,
    outside: Option<Arc<Outside>>,
}

/// Where processes of children are started, and how long each took until it reached its gate.
struct Outside {
    folder: PathBuf,
    gates_ms: Mutex<Vec<f64>>,
}

impl Children for OneTurnChildren {
    fn new_child(&self, call: &Call, parent: &Manifest) -> Result<NewChild, String> {
        let limits = Some(Limits { spend: Money::from_nanos(1_000_000).ok(), ..Limits::default() });
        let thread = NewThread { limits, ..NewThread::of(parent.agent_id.clone()) };
        let detached = call.arguments["detached"] == json!(true);
        Ok(NewChild { thread, messages: vec![Message::text(Role::User, "go")], detached })
    }

    fn run_config(&self, _: &Manifest) -> Result<RunConfig, String> {
        childs(&self.moments).map_err(|error| error.to_string())
    }

    fn launch(&self, child: &ThreadId) -> Result<Box<dyn Started>, String> {
        let outside = self.outside.as_ref().ok_or("every child is waited for here")?;
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let arguments = ["spawned", &outside.folder.to_string_lossy(), child.as_str()].map(str::to_owned);
        let began = Instant::now();
        let process = Detached::start(&program, &arguments, [], &outside.folder).map_err(|error| error.to_string())?;
        let took = began.elapsed().as_secs_f64() * 1e3;
        outside.gates_ms.lock().unwrap_or_else(PoisonError::into_inner).push(took);
        Ok(Box::new(process))
    }
}
