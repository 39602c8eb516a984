//! The page of a thread, late in it compared with early, and a search over many entries of knowledge.

use std::fs;
use std::path::Path;
use std::time::Instant;

use selvedge::knowledge::search_knowledge;
use selvedge::pages::update;
use selvedge_items::{Library, Policy};
use selvedge_log::Trust;
use selvedge_model::{AgentId, Batch, Changeset, Expect, Message, NewThread, Part, Reason, Role, ThreadId};
use selvedge_store::Commit;
use selvedge_store::search::Query;
use selvedge_store_local::{Access, LocalStore};

use crate::home::Home;
use crate::measure::Spread;
use crate::report::{Goal, Report, Unit};
use crate::{Outcome, Plan};

/// The turn around which early updates are measured, and the one around which late ones are.
const EARLY: usize = 50;
const LATE: usize = 5_000;
/// How many updates are measured around a turn: more than one part of a page has turns.
const WINDOW: usize = 96;
/// How many entries of knowledge there are.
const ENTRIES: usize = 10_000;
/// How many results a search has.
const FOUND: usize = 10;

const QUERIES: [&str; 8] =
    ["loom", "heron", "heron fish", "\"what was said\"", "her*", "w4711x", "heron NOT fish", "otter OR w99x"];

pub(crate) fn measure(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    pages(&folder.join("store"), plan, report)?;
    knowledge(&folder.join("knowledge"), plan, report)
}

fn pages(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let late = if plan.quick { LATE / 10 } else { LATE };
    let home = Home::make(folder)?;
    let store = home.open(Access::ReadWrite)?;
    let trust = store.trust().clone();
    let thread = ThreadId::new("page-0123456789ab")?;
    let new = NewThread::of(AgentId::new("scribe")?);
    let birth = Part::new(thread.clone(), Expect::Absent, Changeset::creating(new));
    store.commit(Batch { key: None, parts: vec![birth], consumed: Vec::new(), posted: Vec::new() })?;
    let mut measured = [Vec::new(), Vec::new()];
    for number in 0..late + WINDOW / 2 {
        turn(&store, &thread, number)?;
        let near = |turn: usize| number + WINDOW / 2 >= turn && number < turn + WINDOW / 2;
        let window = [EARLY, late].into_iter().position(near);
        // Before a window, the page is brought up to the log once.
        if window.is_none() && number + WINDOW / 2 + 1 != late {
            continue;
        }
        let began = Instant::now();
        update(&store, &trust, &thread)?;
        if let Some(window) = window {
            measured[window].push(began.elapsed().as_secs_f64() * 1e3);
        }
    }
    let [early, later] = measured;
    let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len() as f64;
    let ratio = mean(&later) / mean(&early);
    let what = format!("an update of a page around turn {EARLY}");
    report.figure("page_update_ms", &what, Unit::Millis, &Spread::of(&early), Goal::None);
    let what = format!("an update of a page around turn {late} ÷ around turn {EARLY}, mean time");
    report.figure("page_update_ratio", &what, Unit::Times, &Spread::of(&[ratio]), Goal::AtMost(1.2));
    report.method(
        "pages",
        format!("turns of 1 KiB; {WINDOW} updates around each turn, each after a commit, with the sync of the file"),
    );
    Ok(store.close()?)
}

fn turn(store: &LocalStore, thread: &ThreadId, number: usize) -> Outcome<()> {
    let messages = vec![
        Message::text(Role::User, format!("Question {number}: {}", "what was said? ".repeat(20))),
        Message::text(Role::Assistant, format!("Answer {number}: {}", "the loom keeps it. ".repeat(35))),
    ];
    let changeset = Changeset { messages, ..Changeset::empty(Reason::AssistantTurnCommitted) };
    let part = Part::new(thread.clone(), Expect::Any, changeset);
    store.commit(Batch { key: None, parts: vec![part], consumed: Vec::new(), posted: Vec::new() })?;
    Ok(())
}

fn knowledge(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let entries = if plan.quick { ENTRIES / 10 } else { ENTRIES };
    for number in 0..entries {
        let path = folder.join(format!("knowledge/area-{:02}/entry-{number:05}.md", number % 50));
        if number < 50 {
            fs::create_dir_all(path.parent().unwrap_or(folder))?;
        }
        let rare = match number % 50 {
            0 => "a heron and a fish",
            1 => "an otter",
            _ => "nothing else",
        };
        let text = format!("the loom keeps what was said, and then {rare} w{number}x. ").repeat(12);
        let title = format!("Entry {number}");
        fs::write(path, format!("---\ntitle: {title}\ntags: [loom, area]\n---\n\n{text}\n"))?;
    }
    let library =
        Library { project: Some(folder.to_owned()), user: None, trust: Trust::of(&[]), policy: Policy::default() };
    let mut took = Vec::new();
    for _ in 0..plan.rounds.min(5) {
        for query in QUERIES {
            let query = Query::parse(query, &|_| None)?;
            let began = Instant::now();
            let found = search_knowledge(&library, &query, FOUND, &|_| true)?;
            took.push(began.elapsed().as_secs_f64() * 1e3);
            assert_eq!(found.searched, entries);
        }
    }
    let what = format!("a search over {entries} entries of knowledge, {FOUND} of them read and verified, median");
    report.figure("knowledge_search_ms", &what, Unit::Millis, &Spread::of(&took), Goal::AtMost(20.0));
    Ok(())
}
