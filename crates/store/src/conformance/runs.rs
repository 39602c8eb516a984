//! The index of runs: what the first and the last changeset of a run record.

use selvedge_model::fold::FoldError;
use selvedge_model::limits::Cost;
use selvedge_model::manifest::Contradiction;
use selvedge_model::{Batch, Changeset, Event, Reason, Run, RunMeta, RunStatus, Status, ThreadId};

use super::Harness;
use super::support::*;
use crate::contract::{Commit, Registry};
use crate::error::Error;

fn started() -> RunMeta {
    RunMeta::started(id("scribe"), "user").under_lease()
}

fn run(store: &impl Registry, thread: &ThreadId, name: &str) -> Run {
    let runs = store.runs(thread).unwrap();
    runs.into_iter().find(|run| run.run_id.as_str() == name).unwrap_or_else(|| panic!("run `{name}` is known"))
}

fn names(store: &impl Registry, thread: &ThreadId) -> Vec<String> {
    store.runs(thread).unwrap().into_iter().map(|run| run.run_id.to_string()).collect()
}

/// The first changeset of a run creates its record, the last one completes it.
pub fn the_first_changeset_makes_a_run_and_the_last_completes_it<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let thread = create(&store, "run");
    assert_eq!(store.runs(&thread).unwrap(), []);
    append(&store, &thread, starts("run-1"));
    let first = run(&other, &thread, "run-1");
    assert_eq!((&first.thread_id, first.meta.status, &first.meta), (&thread, RunStatus::Running, &started()));
    append(&store, &thread, Changeset { run_id: Some(id("run-1")), ..says("in the middle") });
    let meta = RunMeta {
        termination_detail: Some("nothing left to do".to_owned()),
        input_tokens: 100,
        output_tokens: 20,
        ..started().finished("natural")
    };
    append(&store, &thread, records("run-1", meta.clone()));
    let last = run(&other, &thread, "run-1");
    assert_eq!(last.meta, meta, "the last record counts");
    assert_eq!(last.created_at, first.created_at);
    assert_ne!(last.updated_at, first.updated_at, "its time was updated");
    assert_eq!(store.runs(&thread).unwrap().len(), 1);
}

/// The usage of an active run is counted with each turn, and once: its end has the total.
pub fn what_a_run_uses_is_counted_turn_by_turn_and_once<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "counted");
    append(&store, &thread, starts("run-1"));
    let usage = r#"{"model":"m","turns":1,"input_tokens":10,"output_tokens":5,"spend":0.5,"duration_ms":0}"#;
    let turn = || Changeset {
        run_id: Some(id("run-1")),
        events: vec![Event::Usage(serde_json::from_str(usage).unwrap())],
        ..Changeset::empty(Reason::AssistantTurnCommitted)
    };
    for turns in 1..=2 {
        append(&store, &thread, turn());
        let cost = store.get(&thread).unwrap().manifest.cost;
        assert_eq!((cost.turns, cost.input_tokens, cost.output_tokens), (turns, 10 * turns, 5 * turns));
    }
    let total = Cost { turns: 2, input_tokens: 20, output_tokens: 10, duration_ms: 7, ..Cost::default() };
    let total = Cost { spend: "1".parse().unwrap(), ..total };
    append(&store, &thread, records("run-1", RunMeta { cost: Some(total.clone()), ..started().finished("natural") }));
    assert_eq!(store.get(&thread).unwrap().manifest.cost, total);
}

/// The origin of a run is written once.
pub fn where_a_run_came_from_is_written_once<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "run");
    let from = |thread: &str, entry: &str, meta: RunMeta| RunMeta {
        parent_thread_id: Some(id(thread)),
        source_mailbox_entry_id: Some(entry.to_owned()),
        ..meta
    };
    let first =
        Changeset { parent_run_id: Some(id("above")), ..records("run-1", from("parent", "entry-1", started())) };
    append(&store, &thread, first);
    let last = records("run-1", from("stranger", "entry-2", started().finished("natural")));
    append(&store, &thread, Changeset { parent_run_id: Some(id("elsewhere")), ..last });
    let found = run(&store, &thread, "run-1");
    assert_eq!(found.parent_run_id, Some(id("above")));
    assert_eq!(found.meta.parent_thread_id, Some(id("parent")));
    assert_eq!(found.meta.source_mailbox_entry_id.as_deref(), Some("entry-1"));

    append(&store, &thread, starts("run-2"));
    let late = records("run-2", from("parent", "entry-3", started().finished("natural")));
    append(&store, &thread, Changeset { parent_run_id: Some(id("run-1")), ..late });
    let found = run(&store, &thread, "run-2");
    assert_eq!(found.parent_run_id, Some(id("run-1")), "what was absent at first may be added later");
    assert_eq!(found.meta.source_mailbox_entry_id.as_deref(), Some("entry-3"));
}

/// A run that is done stays done, and the thread continues with another.
pub fn a_done_run_stays_done<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "run");
    append(&store, &thread, starts("run-1"));
    append(&store, &thread, finishes("run-1", "natural"));
    let waiting = RunMeta { status: RunStatus::Waiting, ..started() };
    leaves_no_trace(&store, &[&thread], || {
        for again in [starts("run-1"), records("run-1", waiting)] {
            let answer = store.commit(Batch::of(part(&thread, again)));
            assert_refused!(answer, Error::Fold { source: FoldError::RunDone(_), .. }, "a run that is done");
        }
    });
    append(&store, &thread, starts("run-2"));
    assert_eq!(store.get(&thread).unwrap().manifest.status, Status::Running);
}

/// A waiting run may continue, and be done.
pub fn a_waiting_run_continues<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "run");
    append(&store, &thread, starts("run-1"));
    for _ in 0..2 {
        append(&store, &thread, records("run-1", RunMeta { status: RunStatus::Waiting, ..started() }));
        assert_eq!(run(&store, &thread, "run-1").meta.status, RunStatus::Waiting);
        assert_eq!(store.get(&thread).unwrap().manifest.status, Status::Suspended);
        append(&store, &thread, starts("run-1"));
        assert_eq!(run(&store, &thread, "run-1").meta.status, RunStatus::Running);
    }
    append(&store, &thread, finishes("run-1", "natural"));
    assert_eq!(run(&store, &thread, "run-1").meta.status, RunStatus::Done);
    assert_eq!(names(&store, &thread), ["run-1"]);
}

/// One run is active at a time.
pub fn a_second_run_is_refused_while_one_is_active<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "run");
    append(&store, &thread, starts("run-1"));
    leaves_no_trace(&store, &[&thread], || {
        for second in [starts("run-2"), finishes("run-2", "natural")] {
            let answer = store.commit(Batch::of(part(&thread, second)));
            assert_refused!(
                answer,
                Error::Fold { source: FoldError::Contradiction(Contradiction::RunActive { active, .. }), .. } if active.as_str() == "run-1",
                "a second run"
            );
        }
    });
}

/// A changeset in the middle of a run updates its time, in the index as in the log.
pub fn a_changeset_in_the_middle_touches_its_run<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "run");
    append(&store, &thread, starts("run-1"));
    let first = run(&store, &thread, "run-1");
    append(&store, &thread, Changeset { run_id: Some(id("run-1")), ..says("in the middle") });
    let middle = run(&store, &thread, "run-1");
    assert_eq!(middle, loaded(&store, &harness.trust(), &thread).runs[&middle.run_id], "the log has what is shown");
    assert_ne!(middle.updated_at, first.updated_at, "its time was updated");
    assert_eq!((middle.created_at, middle.meta), (first.created_at, first.meta), "nothing else changed");
}

/// A run may be recorded only at its end.
pub fn a_run_may_be_recorded_only_at_its_end<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "run");
    append(&store, &thread, finishes("run-1", "natural"));
    let found = run(&store, &thread, "run-1");
    assert_eq!((found.meta.status, found.created_at), (RunStatus::Done, found.updated_at));
    assert_eq!(store.get(&thread).unwrap().manifest.status, Status::Completed);
}

/// Runs are listed oldest first, whatever their names and times.
pub fn runs_come_oldest_first<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "run");
    for name in ["z", "a", "m"] {
        append(&store, &thread, starts(name));
        append(&store, &thread, finishes(name, "natural"));
    }
    assert_eq!(names(&store, &thread), ["z", "a", "m"]);
}

/// The same run id on two threads is two runs.
pub fn runs_of_two_threads_are_distinct<H: Harness>(harness: &H) {
    let store = harness.open();
    let one = create(&store, "one");
    let two = create(&store, "two");
    commit(&store, batch([part(&one, starts("run-1")), part(&two, starts("run-1"))]));
    append(&store, &one, finishes("run-1", "error"));
    assert_eq!(run(&store, &one, "run-1").meta.status, RunStatus::Done);
    assert_eq!(run(&store, &two, "run-1").meta.status, RunStatus::Running);
}

/// The usage of a thread's runs is added up, each run once.
pub fn what_runs_used_is_added_up_once<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "run");
    let used = |tokens| {
        let cost = Cost { turns: 2, duration_ms: 1_000, ..Cost::default() };
        RunMeta { input_tokens: tokens, output_tokens: 1, cost: Some(cost), ..started().finished("natural") }
    };
    append(&store, &thread, starts("run-1"));
    append(&store, &thread, records("run-1", used(100)));
    append(&store, &thread, records("run-2", used(20)));
    let sum = Cost { turns: 4, input_tokens: 120, output_tokens: 2, duration_ms: 2_000, ..Cost::default() };
    assert_eq!(store.get(&thread).unwrap().manifest.cost, sum);
    // Whether a second end of the same run is refused or accepted, it must not be counted again.
    let second_end = store.commit(Batch::of(part(&thread, records("run-2", used(20)))));
    let cost = store.get(&thread).unwrap().manifest.cost;
    assert_eq!(cost, sum, "run-2 used its tokens once, though its end was recorded twice ({second_end:?})");
}
