//! Searching many threads, catching up the index, and the cost of what is done after a run.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use selvedge_engine::thread_search::{ThreadQuery, search_threads};
use selvedge_engine::{Engine, Input, Options, Redactor};
use selvedge_model::scope::Scopes;
use selvedge_model::{
    AgentId, Batch, Cancel, Changeset, Embedder as _, Expect, Message, NewThread, Part, Reason, Role, ThreadId,
};
use selvedge_providers::embed::Hashing;
use selvedge_store::Commit;
use selvedge_store::effects::{Effects, Embedding};
use selvedge_store::search::{Query, Search, SearchRequest, UnembeddedPassage, read_unverified};
use selvedge_store_local::system::{SystemClock, SystemIds};
use selvedge_store_local::{Access, LocalStore};
use selvedge_tools::ProcessGroups;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use crate::home::Home;
use crate::measure::Spread;
use crate::report::{Goal, Report, Unit};
use crate::turns::agent;
use crate::{Outcome, Plan};

/// How many threads there are, how many commits each has after its creation, and how many messages a commit has.
const THREADS: usize = 1_000;
const COMMITS: usize = 10;
const MESSAGES: usize = 10;
/// How many threads one batch writes.
const THREADS_AT_ONCE: usize = 25;
/// How many threads a search returns.
const FOUND: usize = 10;
/// The turns of a run after which the effects are measured.
const TURNS: usize = 20;

/// Words that nearly every message has, that some have, and that one has.
const QUERIES: [&str; 12] = [
    "loom",
    "weaver thread",
    "\"what was said\"",
    "heron",
    "heron fish",
    "heron OR otter",
    "her*",
    "otter NOT heron",
    "w4711x",
    "w99x",
    "put_blob(&thread",
    "天気",
];

/// A plain full-text table of the same texts, by Python: how long filling it takes, and each query in milliseconds.
const PLAIN: &str = r#"
import json, sqlite3, sys, time
texts = open(sys.argv[1], encoding="utf-8").read().split("\x1e")
db = sqlite3.connect(sys.argv[2])
db.execute("CREATE VIRTUAL TABLE plain USING fts5(text)")
began = time.perf_counter()
with db:
    db.executemany("INSERT INTO plain (text) VALUES (?)", ((text,) for text in texts))
filled = time.perf_counter() - began
took = []
for _ in range(int(sys.argv[3])):
    for query in ["loom", "weaver thread", '"what was said"', "heron", "heron fish", "heron OR otter", "her*", "otter NOT heron", "w4711x", "w99x"]:
        began = time.perf_counter()
        db.execute("SELECT rowid FROM plain WHERE plain MATCH ? ORDER BY rank LIMIT 10", (query,)).fetchall()
        took.append((time.perf_counter() - began) * 1e3)
print(json.dumps({"filled": filled, "took": took}))
"#;

fn text(number: usize) -> String {
    let mut text = String::new();
    let rare = match number % 50 {
        0 => "a heron and a fish",
        1 => "an otter",
        2 => "store.put_blob(&thread, bytes)?;",
        3 => "今日の天気は雨",
        _ => "nothing else",
    };
    for part in 0..4 {
        // Writing to a string can't fail.
        _ = write!(
            text,
            "the loom keeps what was said, weaver {part} of thread {}, and then {rare} w{number}x. ",
            number % 97
        );
    }
    text
}

pub(crate) fn measure(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let threads = if plan.quick { THREADS / 10 } else { THREADS };
    let home = Home::make(&folder.join("store"))?;
    let store = home.open(Access::ReadWrite)?;
    write(&store, threads)?;
    let commits = threads * (COMMITS + 1);
    let began = Instant::now();
    let caught = store.catch_up(&Cancel::new())?;
    let seconds = began.elapsed().as_secs_f64();
    assert_eq!((caught.commits, caught.behind), (commits as u64, 0));
    let messages = threads * COMMITS * MESSAGES;
    let what = format!("the index catches up {commits} commits with {messages} messages");
    report.figure("search_catch_up_ms", &what, Unit::Millis, &Spread::of(&[seconds * 1e3]), Goal::None);
    let rounds = plan.rounds;
    let (whole, index) = searches(&store, rounds)?;
    let what = format!("a search over {messages} messages, {FOUND} threads read back from verified logs, median");
    report.figure("search_ms", &what, Unit::Millis, &Spread::of(&whole), Goal::AtMost(20.0));
    report.figure("search_index_ms", "  of it in the index", Unit::Millis, &Spread::of(&index), Goal::None);
    peers(folder, &home, threads, rounds, seconds, report)?;
    store.close()?;
    effects(folder, plan, report)?;
    report.method(
        "search",
        format!(
            "{threads} threads of {COMMITS} commits of {MESSAGES} messages; {} queries, words that nearly every message has as well as words of one; warm page cache; \
             plain FTS5 is one table of the same texts in Python's sqlite3, ten rows by rank, nothing read back; grep is `grep -rF` over the logs; \
             the processor time of the effect of usage after each of a number of runs of {TURNS} turns, divided by that of one turn of these runs; \
             then that of indexing such a run and of making its vectors offline, in the files and in the index, as runs do if an embedder is configured",
            QUERIES.len()
        ),
    );
    Ok(())
}

fn thread(number: usize) -> Outcome<ThreadId> {
    Ok(ThreadId::new(format!("found-{number:012x}"))?)
}

fn write(store: &LocalStore, threads: usize) -> Outcome<()> {
    let numbers: Vec<usize> = (0..threads).collect();
    for some in numbers.chunks(THREADS_AT_ONCE) {
        let agent = AgentId::new("scribe")?;
        let birth = |number: &usize| -> Outcome<Part> {
            Ok(Part::new(thread(*number)?, Expect::Absent, Changeset::creating(NewThread::of(agent.clone()))))
        };
        commit(store, some.iter().map(birth))?;
        for turn in 0..COMMITS {
            let says = |number: &usize| -> Outcome<Part> {
                let first = (number * COMMITS + turn) * MESSAGES;
                let messages = (first..first + MESSAGES).map(|one| Message::text(Role::User, text(one))).collect();
                let said = Changeset { messages, ..Changeset::empty(Reason::UserMessage) };
                Ok(Part::new(thread(*number)?, Expect::Any, said))
            };
            commit(store, some.iter().map(says))?;
        }
    }
    Ok(())
}

fn commit(store: &LocalStore, parts: impl Iterator<Item = Outcome<Part>>) -> Outcome<()> {
    let mut parts = parts.collect::<Outcome<Vec<Part>>>()?.into_iter();
    let mut batch = Batch::of(parts.next().ok_or("an empty batch")?);
    batch.parts.extend(parts);
    store.commit(batch)?;
    Ok(())
}

/// How many milliseconds searches take as a whole, and in the index.
fn searches(store: &LocalStore, rounds: usize) -> Outcome<(Vec<f64>, Vec<f64>)> {
    let mut whole = Vec::new();
    let mut index = Vec::new();
    for round in 0..=rounds {
        for text in QUERIES {
            let query = Query::parse(text, &|_| None)?;
            let began = Instant::now();
            store.search(&SearchRequest { query: &query, vector: None, limit: FOUND })?;
            let in_index = began.elapsed().as_secs_f64() * 1e3;
            let asked = ThreadQuery { query, vector: None, only: None, limit: FOUND };
            let began = Instant::now();
            let found = search_threads(store, store, store.trust(), &asked, &Cancel::new())?;
            let took = began.elapsed().as_secs_f64() * 1e3;
            assert!(!found.results.is_empty() || text.starts_with('w'), "{text}");
            // The first round warms the caches.
            if round > 0 {
                whole.push(took);
                index.push(in_index);
            }
        }
    }
    Ok((whole, index))
}

/// The same with grep and with a plain full-text table.
fn peers(
    folder: &Path,
    home: &Home,
    threads: usize,
    rounds: usize,
    caught_up: f64,
    report: &mut Report,
) -> Outcome<()> {
    let logs = home.folder().join(".ai/agent/threads");
    let mut took = Vec::new();
    for _ in 0..rounds {
        for word in ["heron", "w4711x"] {
            let began = Instant::now();
            let mut grep = Command::new("grep");
            grep.args(["-rlF", "--include=transcript.jsonl", word]).arg(&logs).stdout(Stdio::null());
            if grep.status().is_err() {
                return Ok(());
            }
            took.push(began.elapsed().as_secs_f64() * 1e3);
        }
    }
    report.figure(
        "search_grep_ms",
        "grep over the same logs, which ranks nothing and verifies nothing",
        Unit::Millis,
        &Spread::of(&took),
        Goal::None,
    );
    let texts: Vec<String> = (0..threads * COMMITS * MESSAGES).map(text).collect();
    let file = folder.join("texts");
    fs::write(&file, texts.join("\u{1e}"))?;
    let mut python = Command::new("python3");
    python.args(["-c", PLAIN]).arg(&file).arg(folder.join("plain.db")).arg(rounds.to_string());
    let Ok(output) = python.output() else { return Ok(()) };
    let Ok(found) = serde_json::from_slice::<Value>(&output.stdout) else { return Ok(()) };
    let took: Vec<f64> = found["took"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    report.figure(
        "search_plain_ms",
        "a plain FTS5 table of the same texts, which reads nothing back",
        Unit::Millis,
        &Spread::of(&took),
        Goal::None,
    );
    let filled = found["filled"].as_f64().unwrap_or_default();
    report.figure("search_plain_fill_ms", "  filling it", Unit::Millis, &Spread::of(&[filled * 1e3]), Goal::None);
    let ratio = [caught_up / filled.max(1e-9)];
    report.figure("search_catch_up_ratio", "  catching up ÷ filling it", Unit::Times, &Spread::of(&ratio), Goal::None);
    Ok(())
}

/// Seconds of processor time of this process.
fn processor() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// What the record of usage costs after a run, as a part of the processor time of one of its turns.
fn effects(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let home = Home::make(&folder.join("runs"))?;
    let store = Arc::new(home.open(Access::ReadWrite)?);
    let engine = Engine::new(Options {
        store: store.clone(),
        trust: store.trust().clone(),
        clock: Arc::new(SystemClock),
        ids: Arc::new(SystemIds),
        processes: Arc::new(ProcessGroups),
        scopes: Scopes::builtin(),
        redactor: Redactor::default(),
        snapshots: None,
        prepare: None,
    });
    let (_, work) = agent::scripted(TURNS)?;
    let mut of_turn = Vec::new();
    let mut of_effect = Vec::new();
    let mut of_vectors = Vec::new();
    let mut took = Vec::new();
    let runtime = Builder::new_current_thread().build()?;
    for _ in 0..plan.rounds * 5 {
        let thread = engine.create(NewThread::of(work.agent_id.clone()), Vec::new())?;
        let before = processor();
        engine.send(&thread, Input::text("look around"), work.clone(), &Cancel::new(), &mut |_| {})?;
        let between = processor();
        let began = Instant::now();
        assert_eq!(store.record_usage(&Cancel::new())?, 1);
        took.push(began.elapsed().as_secs_f64() * 1e3);
        of_turn.push((between - before) / TURNS as f64);
        let recorded = processor();
        of_effect.push(recorded - between);
        vectors(&store, &work.agent_id, &runtime)?;
        of_vectors.push(processor() - recorded);
    }
    let share = |effects: &[f64], turns: f64| -> Vec<f64> {
        effects.iter().zip(&of_turn).map(|(effect, turn)| effect / (turn * turns).max(1e-12)).collect()
    };
    let of = |turns| share(&of_effect, turns);
    let what = "processor time of the record of a run ÷ that of one turn";
    report.figure("effects_turn_share", what, Unit::Share, &Spread::of(&of(1.0)), Goal::AtMost(0.02));
    let what = format!("  ÷ that of its {TURNS} turns");
    report.figure("effects_run_share", &what, Unit::Share, &Spread::of(&of(TURNS as f64)), Goal::None);
    let what = format!("  the index and the vectors of a run, made offline ÷ its {TURNS} turns");
    let of_run = Spread::of(&share(&of_vectors, TURNS as f64));
    report.figure("effects_vectors_share", &what, Unit::Share, &of_run, Goal::None);
    report.figure(
        "effects_ms",
        "  its time, after the answer was delivered",
        Unit::Millis,
        &Spread::of(&took),
        Goal::None,
    );
    Ok(())
}

/// Indexes what is new and gives it vectors.
fn vectors(store: &LocalStore, agent: &AgentId, runtime: &Runtime) -> Outcome<()> {
    store.catch_up(&Cancel::new())?;
    loop {
        let pending = store.pending_vectors(Hashing.name(), Hashing.dimensions(), 128)?;
        if pending.is_empty() {
            return Ok(());
        }
        let text = |one: &UnembeddedPassage| read_unverified(store, &one.hit).unwrap_or_default();
        let texts: Vec<String> = pending.iter().map(text).collect();
        let vectors = runtime.block_on(Hashing.embed(&texts, &Cancel::new()))?;
        let pairs: Vec<_> = pending.into_iter().zip(vectors).collect();
        let lines: Vec<_> =
            pairs.iter().map(|(one, vector)| Embedding::new(&one.hit, Hashing.name(), vector)).collect();
        store.put_embeddings(agent, &lines)?;
        store.put_vectors(Hashing.name(), &pairs)?;
    }
}
