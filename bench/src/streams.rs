//! Streamed answers over HTTP: the cost of a chunk, the memory of a large answer, and many answers at once in one process.
//!
//! The host is a process of its own ([`host`]), so its work is in no figure.

pub(crate) mod host;
mod open;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use selvedge_engine::{Engine, Input, RunConfig, RunEvent};
use selvedge_model::{AgentId, Answer, Cancel, Draft, Message, Model, NewThread, Prompt, Role, Status, ThreadId};
use selvedge_providers::wire::Dialect;
use selvedge_providers::{Connections, Format, Host as ModelHost, Remote};
use selvedge_store_local::Access;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use self::host::{Host, Stream};
use self::open::OpenStreams;
use crate::home::Home;
use crate::measure::{Spread, cpu, in_turns};
use crate::report::{Goal, Report, Unit};
use crate::{Outcome, Plan, child, turns};

/// The chunks of an answer whose cost is measured; each is a word.
const CHUNKS: usize = 20_000;
const CHUNKS_QUICK: usize = 500;
/// A large answer: ten thousand chunks of a kibibyte.
const LARGE: Stream = Stream { chunks: 10 * 1024, bytes: 1024, pause_ms: 0, together: 1 };
/// How many answers are streamed at once, and each of them.
const AT_ONCE: Stream = Stream { chunks: 50, bytes: 24, pause_ms: 100, together: 1_000 };
const AT_ONCE_QUICK: Stream = Stream { chunks: 20, bytes: 24, pause_ms: 50, together: 50 };
/// How many threads submit messages.
const SUBMITTERS: usize = 64;
/// The formats, by the names of their rows.
const FORMATS: [(&str, Format); 3] =
    [("anthropic", Format::Anthropic), ("openai", Format::OpenAiChat), ("openai_responses", Format::OpenAiResponses)];

pub(crate) fn measure(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let host = Host::start()?;
    let chunks = if plan.quick { CHUNKS_QUICK } else { CHUNKS };
    let arguments = [host.url(), &plan.rounds.to_string(), &chunks.to_string()];
    let (found, _) = child::run(child::command("stream-chunks", &folder.join("chunks"), &arguments)?)?;
    add_chunks(report, &found);
    add_large(folder, host.url(), report)?;
    let stream = if plan.quick { AT_ONCE_QUICK } else { AT_ONCE };
    let arguments = [host.url(), &stream.to_string()];
    let (found, _) = child::run(child::command("stream-crowd", &folder.join("crowd"), &arguments)?)?;
    add_crowd(report, stream, &found);
    report.method(
        "streams",
        format!(
            "a host in a process of its own sends each chunk in a write of its own; processor time of the receiving process, divided by \
             {chunks} chunks of a word: read from a socket and not looked at, read as an answer by a provider, and as a whole run through the \
             engine with its drafts passed to a caller and the answer committed, in turns; the large answer is read by a provider in a \
             process of its own, and by a whole run in another; {} runs of one process, each with an answer of {} chunks {} ms apart, of which \
             none gets its second chunk before all have their first",
            stream.together, stream.chunks, stream.pause_ms
        ),
    );
    Ok(())
}

fn add_chunks(report: &mut Report, found: &Value) {
    let all =
        |key: &str| -> Vec<f64> { found[key].as_array().into_iter().flatten().filter_map(Value::as_f64).collect() };
    let bare = all("bare");
    for (name, _) in FORMATS {
        let cost = all(name);
        let ratios: Vec<f64> = cost.iter().zip(&bare).map(|(cost, bare)| cost / bare).collect();
        let what = format!("a streamed chunk ÷ reading its bytes, {name}, processor time");
        report.figure(&format!("stream_{name}_ratio"), &what, Unit::Times, &Spread::of(&ratios), Goal::None);
        report.figure(&format!("stream_{name}_us"), "  a chunk", Unit::Cpu, &Spread::of(&cost), Goal::None);
    }
    let run = all("run");
    let provider = all(FORMATS[0].0);
    let ratios: Vec<f64> = run.iter().zip(&provider).map(|(run, provider)| run / provider).collect();
    let what = "a streamed chunk of a run ÷ of its provider alone, processor time";
    report.figure("stream_run_ratio", what, Unit::Times, &Spread::of(&ratios), Goal::None);
    report.figure("stream_run_us", "  a chunk of a run", Unit::Cpu, &Spread::of(&run), Goal::None);
    report.figure("stream_bare_us", "  reading the bytes of a chunk", Unit::Cpu, &Spread::of(&bare), Goal::None);
}

fn add_large(folder: &Path, url: &str, report: &mut Report) -> Outcome<()> {
    for (way, what) in
        [("provider", "peak memory, an answer of 10 MiB read by a provider"), ("run", "  by a whole run")]
    {
        let mut peaks = Vec::new();
        for (name, _) in FORMATS {
            let folder = folder.join(format!("large-{way}-{name}"));
            let (answer, _) = child::run(child::command("stream-large", &folder, &[url, way, name])?)?;
            peaks.push(answer["peak_kib"].as_f64().unwrap_or(0.0) / 1024.0);
        }
        let key = format!("stream_large_{way}_mib");
        report.figure(&key, what, Unit::Mebibytes, &Spread::of(&peaks), Goal::AtMost(60.0));
    }
    Ok(())
}

fn add_crowd(report: &mut Report, stream: Stream, found: &Value) {
    let runs = stream.together;
    let mut row = |key: &str, what: &str, unit: Unit, goal: Goal| {
        let figure = Spread::of(&[found[key].as_f64().unwrap_or(0.0)]);
        report.figure(&format!("stream_crowd_{key}"), what, unit, &figure, goal);
    };
    row(
        "open",
        &format!("{runs} streamed answers in one process: open at once"),
        Unit::Count,
        Goal::AtLeast(runs as f64),
    );
    row("elapsed_ms", "  from the first message until all runs have ended", Unit::Millis, Goal::None);
    row("share", "  share of a core meanwhile", Unit::Share, Goal::None);
    row(
        "chunk_us",
        &format!("  processor time of all, for each of {} chunks", runs * stream.chunks),
        Unit::Cpu,
        Goal::None,
    );
    row("threads", "  threads of the operating system", Unit::Count, Goal::AtMost(100.0));
    row("peak_mib", "  peak memory", Unit::Mebibytes, Goal::None);
}

fn runtime() -> Outcome<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

fn remote(url: &str, format: Format, stream: Stream) -> Remote {
    let base = match format {
        Format::Anthropic => url.to_owned(),
        Format::OpenAiChat | Format::OpenAiResponses => format!("{url}/v1"),
    };
    Remote::new(&Connections::new(), ModelHost::new("bench", format, base), stream.to_string(), Dialect::default())
}

/// An answer, read by a provider; returns how many bytes of text were drafted.
fn ask(runtime: &Runtime, model: &Remote, name: &str) -> Outcome<(Answer, usize)> {
    let messages = [Arc::new(Message::text(Role::User, "Go."))];
    let prompt = Prompt::new(name, &messages);
    let mut drafted = 0;
    let mut draft = |draft| {
        if let Draft::Text { text } = draft {
            drafted += text.len();
        }
    };
    let answer = runtime.block_on(model.answer(&prompt, &mut draft, &Cancel::new()))?;
    Ok((answer, drafted))
}

/// Runs a fresh thread for a caller that looks at its drafts.
fn run(engine: &Engine, work: &Arc<RunConfig>) -> Outcome<()> {
    let thread = engine.create(NewThread::of(work.agent_id.clone()), Vec::new())?;
    let mut drafted = 0;
    let mut tell = |event| {
        if let RunEvent::Draft { draft: Draft::Text { text }, .. } = event {
            drafted += text.len();
        }
    };
    let outcome = engine.send(&thread, Input::text("Go."), work.clone(), &Cancel::new(), &mut tell)?;
    if outcome.status.status() != Some(Status::Completed) {
        return Err(format!("a run of the bench did not complete: {:?}", outcome.why).into());
    }
    if drafted == 0 {
        return Err("a run of the bench was not streamed".into());
    }
    Ok(())
}

/// The processor time of some work for each of `count` chunks, in microseconds.
fn each(count: usize, work: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
    let began = cpu();
    work()?;
    Ok(cpu().saturating_sub(began).as_secs_f64() * 1e6 / count as f64)
}

fn whole(drafted: usize, stream: Stream) -> Outcome<()> {
    let wanted = stream.chunks * stream.bytes;
    if drafted == wanted { Ok(()) } else { Err(format!("{drafted} bytes arrived, not {wanted}").into()) }
}

/// The cost of a chunk, in a process of its own.
pub(crate) fn chunks(folder: &Path, url: &str, rounds: usize, chunks: usize) -> Outcome<Value> {
    let stream = Stream { chunks, bytes: 6, pause_ms: 0, together: 1 };
    let name = stream.to_string();
    let home = Home::make(folder)?;
    let engine = turns::engine(&home, Arc::new(home.open(Access::ReadWrite)?))?;
    let runtime = runtime()?;
    let models = FORMATS.map(|(_, format)| remote(url, format, stream));
    let model = Arc::new(remote(url, FORMATS[0].1, stream));
    let work = Arc::new(RunConfig::new(AgentId::new("scribe")?, model, &name));
    // The first of each connects. A caller that is too slow misses drafts of a run: that is allowed.
    run(&engine, &work)?;
    for model in &models {
        whole(ask(&runtime, model, &name)?.1, stream)?;
    }
    let measured = in_turns(
        rounds,
        || each(chunks, || host::read_bare(url, stream)),
        |_| -> Outcome<_> {
            let mut costs = [0.0; 3];
            for (cost, model) in costs.iter_mut().zip(&models) {
                *cost = each(chunks, || whole(ask(&runtime, model, &name)?.1, stream))?;
            }
            Ok((costs, each(chunks, || run(&engine, &work))?))
        },
    )?;
    let mut found = json!({
        "bare": measured.iter().map(|round| round.0).collect::<Vec<_>>(),
        "run": measured.iter().map(|round| round.1.1).collect::<Vec<_>>(),
    });
    for (index, (name, _)) in FORMATS.iter().enumerate() {
        found[*name] = measured.iter().map(|round| round.1.0[index]).collect::<Vec<_>>().into();
    }
    Ok(found)
}

/// One large answer, in a process of its own, whose peak memory is measured.
pub(crate) fn large(folder: &Path, url: &str, way: &str, format: &str) -> Outcome<Value> {
    let (_, format) = FORMATS.into_iter().find(|(name, _)| *name == format).ok_or("there is no such format")?;
    let model = remote(url, format, LARGE);
    if way == "provider" {
        whole(ask(&runtime()?, &model, &LARGE.to_string())?.1, LARGE)?;
        return Ok(json!({}));
    }
    let home = Home::make(folder)?;
    let engine = turns::engine(&home, Arc::new(home.open(Access::ReadWrite)?))?;
    run(&engine, &Arc::new(RunConfig::new(AgentId::new("scribe")?, Arc::new(model), LARGE.to_string())))?;
    Ok(json!({}))
}

/// Many streamed answers at once, in a process of its own.
pub(crate) fn crowd(folder: &Path, url: &str, stream: Stream) -> Outcome<Value> {
    let runs = stream.together;
    let home = Home::make(folder)?;
    let engine = turns::engine(&home, Arc::new(home.open(Access::ReadWrite)?))?;
    let agent = AgentId::new("scribe")?;
    let create = || Ok(engine.create(NewThread::of(agent.clone()), Vec::new())?);
    let threads = (0..runs).map(|_| create()).collect::<Outcome<Vec<ThreadId>>>()?;
    let model = Arc::new(OpenStreams::of(remote(url, FORMATS[0].1, stream)));
    let work = Arc::new(RunConfig::new(agent, model.clone(), stream.to_string()));
    let began = Instant::now();
    let used = cpu();
    let submit = |threads: &[ThreadId]| {
        let submit = |thread| Ok(engine.submit(thread, Input::text("Go."), work.clone(), &Cancel::new())?);
        threads.iter().map(submit).collect::<Outcome<Vec<_>>>()
    };
    let running = std::thread::scope(|scope| -> Outcome<_> {
        let chunks = threads.chunks(threads.len().div_ceil(SUBMITTERS).max(1));
        let submitting: Vec<_> = chunks.map(|chunk| scope.spawn(|| submit(chunk))).collect();
        let submitted = submitting.into_iter().map(|each| each.join().map_err(|_| "a thread of the bench panicked")?);
        Ok(submitted.collect::<Outcome<Vec<_>>>()?.into_iter().flatten())
    })?;
    let mut tasks = 0;
    for run in running {
        tasks = tasks.max(std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count));
        let outcome = run.wait(&mut |_| {})?;
        if outcome.status.status() != Some(Status::Completed) {
            return Err(format!("a run of the bench did not complete: {:?}", outcome.why).into());
        }
    }
    let elapsed = began.elapsed();
    let used = cpu().saturating_sub(used);
    Ok(json!({
        "open": model.most(),
        "elapsed_ms": elapsed.as_secs_f64() * 1e3,
        "share": used.as_secs_f64() / elapsed.as_secs_f64(),
        "chunk_us": used.as_secs_f64() * 1e6 / (runs * stream.chunks) as f64,
        "threads": tasks,
        "peak_mib": crate::machine::own_memory_kib("VmHWM") as f64 / 1024.0,
    }))
}
