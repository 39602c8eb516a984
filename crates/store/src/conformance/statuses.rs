//! The status of a thread: it follows its runs and a table of transitions, and a `continued` thread accepts nothing.

use selvedge_model::event::{ManifestChanged, SuspendReason, Suspended};
use selvedge_model::fold::FoldError;
use selvedge_model::limits::Limits;
use selvedge_model::manifest::Contradiction;
use selvedge_model::{Batch, Changeset, Classify, Event, Manifest, RunMeta, RunStatus, Status, ThreadId};
use serde_json::json;

use super::Harness;
use super::chains::handoff;
use super::support::*;
use crate::contract::{Commit, Registry, Store};
use crate::error::Error;

fn started() -> RunMeta {
    RunMeta::started(id("scribe"), "user")
}

fn manifest(store: &impl Registry, thread: &ThreadId) -> Manifest {
    store.get(thread).unwrap().manifest
}

/// A thread with this status.
fn standing_at(store: &impl Store, name: &str, status: Status) -> ThreadId {
    let thread = create(store, name);
    let ended = |outcome| records("run-1", RunMeta { outcome: Some(outcome), ..started().finished("natural") });
    match status {
        Status::Created => return thread,
        Status::Running => append(store, &thread, starts("run-1")),
        Status::Suspended => {
            append(store, &thread, records("run-1", RunMeta { status: RunStatus::Waiting, ..started() }))
        }
        Status::Continued => {
            append(store, &thread, ended(Status::Completed));
            append(store, &thread, with_event(Event::ThreadHandoff(handoff(&id("successor")))))
        }
        terminal => append(store, &thread, ended(terminal)),
    };
    assert_eq!(manifest(store, &thread).status, status, "`{name}`");
    thread
}

/// The status of a thread follows its runs.
pub fn a_status_follows_the_runs<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "followed");
    assert_eq!(manifest(&store, &thread).status, Status::Created);
    let waiting = || records("run-1", RunMeta { status: RunStatus::Waiting, ..started() });
    let suspended = Suspended {
        current: Some(json!(25)),
        maximum: Some(json!(25)),
        ..Suspended::because(SuspendReason::Limit, "turns")
    };
    let why = || Changeset { events: vec![Event::Suspended(suspended.clone())], ..waiting() };
    for (changeset, status, is_active) in [
        (starts("run-1"), Status::Running, true),
        (says("in the middle"), Status::Running, true),
        (why(), Status::Suspended, false),
        (starts("run-1"), Status::Running, true),
        (finishes("run-1", "natural"), Status::Completed, false),
        (starts("run-2"), Status::Running, true),
        (finishes("run-2", "error"), Status::Error, false),
        (finishes("run-3", "cancelled"), Status::Cancelled, false),
        (finishes("run-4", "killed"), Status::Killed, false),
        (finishes("run-5", "max_rounds_reached"), Status::Completed, false),
    ] {
        let what = format!("{changeset:?}");
        append(&store, &thread, changeset);
        let found = manifest(&store, &thread);
        assert_eq!((found.status, found.run_id.is_some()), (status, is_active), "after {what}");
        assert_eq!(found.completed_at.is_some(), status.is_terminal(), "after {what}");
        assert_eq!(found.suspended.is_some(), status == Status::Suspended, "after {what}");
        assert_eq!(found, loaded(&store, &harness.trust(), &thread).manifest, "the log has the same");
    }
}

/// Every listed transition is accepted, and every other is refused and leaves no trace.
pub fn only_listed_status_transitions_are_accepted<H: Harness>(harness: &H) {
    use Status::*;
    let store = harness.open();
    let ends = [Completed, CompletedWithErrors, Error, Cancelled, Killed];
    for from in Status::ALL {
        let allowed: &[Status] = match from {
            Created => &[Running],
            Running => &[Suspended, Completed, CompletedWithErrors, Error, Cancelled, Killed, Continued],
            Suspended => &[Running, Cancelled, Killed],
            Continued => &[],
            end => {
                assert!(ends.contains(&end));
                &[Running, Continued]
            }
        };
        for to in Status::ALL.into_iter().filter(|to| *to != from || from == Continued) {
            let thread = standing_at(&store, &format!("{from}-to-{to}"), from);
            let change = ManifestChanged { status: Some(to), ..ManifestChanged::default() };
            let request = Batch::of(part(&thread, with_event(Event::ManifestChanged(change))));
            if allowed.contains(&to) {
                commit(&store, request);
                assert_eq!(manifest(&store, &thread).status, to, "from {from}");
                continue;
            }
            leaves_no_trace(&store, &[&thread], || {
                let Err(error) = store.commit(request) else { panic!("{from} must not become {to}") };
                assert_eq!(error.code(), "invalid_transition", "from {from} to {to}: {error}");
            });
        }
    }
}

/// A run can't start or end where the table does not allow it.
pub fn a_run_cannot_bypass_the_transition_table<H: Harness>(harness: &H) {
    let store = harness.open();
    let fresh = standing_at(&store, "fresh", Status::Created);
    let running = standing_at(&store, "running", Status::Running);
    let created_again = records("run-1", RunMeta { outcome: Some(Status::Created), ..started().finished("natural") });
    let suspended = Suspended::because(SuspendReason::Error, "process_lost");
    leaves_no_trace(&store, &[&fresh, &running], || {
        for (thread, changeset) in [
            (&fresh, with_event(Event::Suspended(suspended))),
            (&fresh, with_event(Event::ThreadHandoff(handoff(&running)))),
            (&running, created_again),
        ] {
            let answer = store.commit(Batch::of(part(thread, changeset.clone())));
            let refused = matches!(&answer, Err(error) if error.code() == "invalid_transition");
            assert!(refused, "{changeset:?}: {answer:?}");
        }
    });
}

/// A continued thread accepts nothing, not even an empty append.
pub fn a_continued_thread_accepts_nothing<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = standing_at(&store, "left", Status::Continued);
    let renamed = ManifestChanged { title: Some("late".to_owned()), ..ManifestChanged::default() };
    leaves_no_trace(&store, &[&thread], || {
        for changeset in [
            empty(),
            says("is this thread open?"),
            patches([set("n", json!(1))]),
            starts("run-9"),
            finishes("run-9", "natural"),
            with_event(Event::ManifestChanged(renamed)),
            with_event(Event::ThreadHandoff(handoff(&id("another")))),
        ] {
            let answer = store.commit(Batch::of(part(&thread, changeset.clone())));
            assert_refused!(
                answer,
                Error::Fold { source: FoldError::Contradiction(Contradiction::Transition(_)), .. },
                "{changeset:?} on a thread that was continued"
            );
        }
    });
}

/// A checkpoint records whether the thread was settled; a later changeset revokes that.
pub fn a_checkpoint_records_whether_the_thread_is_settled<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "settled");
    append(&store, &thread, starts("run-1"));
    append(&store, &thread, finishes("run-1", "natural"));
    append(&store, &thread, starts("run-2"));
    append(&store, &thread, records("run-2", RunMeta { status: RunStatus::Waiting, ..started() }));
    append(&store, &thread, finishes("run-2", "cancelled"));
    let entries = verified(&store, &harness.trust(), &thread);
    let settled: Vec<_> = entries.iter().map(|entry| entry.checkpoint().unwrap().settled).collect();
    assert_eq!(settled, [false, false, true, false, false, true]);
}

/// A change of the manifest changes the named fields and nothing else.
pub fn a_manifest_changes_only_in_what_is_named<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let thread = create(&store, "named");
    let none = ManifestChanged::default();
    let limits = Limits { turns: Some(50), ..Limits::default() };
    let changes = [
        ManifestChanged { title: Some("A title".to_owned()), ..none.clone() },
        ManifestChanged { session_id: Some("session".to_owned()), ..none.clone() },
        ManifestChanged { outputs: Some(json!({"answer": 42})), ..none.clone() },
        ManifestChanged { limits: Some(limits.clone()), ..none.clone() },
        none,
    ];
    for change in changes {
        append(&store, &thread, with_event(Event::ManifestChanged(change)));
    }
    let found = manifest(&other, &thread);
    assert_eq!((found.title.as_deref(), found.session_id.as_deref()), (Some("A title"), Some("session")));
    assert_eq!((&found.outputs, &found.limits), (&Some(json!({"answer": 42})), &Some(limits)));
    assert_eq!(found.status, Status::Created);
    assert_ne!(found.updated_at, found.created_at);
    assert_eq!(found, loaded(&store, &harness.trust(), &thread).manifest);
}
