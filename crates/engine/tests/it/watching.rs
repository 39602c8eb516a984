//! One thread of the operating system watches all runs of a process.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use selvedge_engine::Input;
use selvedge_model::answer::Drafts;
use selvedge_model::answer::{Answer, End, Prompt};
use selvedge_model::blocking::BoxFuture;
use selvedge_model::limits::Limits;
use selvedge_model::message::Block;
use selvedge_model::{AgentId, Cancel, Draft, Model, ModelError, NewThread, Reason, Request, Status, Stop};
use selvedge_store::Inbox;

use crate::support::{Harness, Reply, agent, request};

/// A model that answers when it is cancelled, and counts concurrent calls.
#[derive(Default)]
pub(crate) struct Waiting(pub(crate) AtomicUsize);

impl Model for Waiting {
    fn answer<'a>(
        &'a self,
        _: &'a Prompt<'a>,
        _: &'a mut Drafts<'a>,
        cancel: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(async move {
            self.0.fetch_add(1, Ordering::SeqCst);
            cancel.stopped().await;
            Err(ModelError::Stopped { partial: Vec::new(), usage: None })
        })
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

/// The number of threads of this process.
fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

/// Each run had a thread of its own and one that watched it, and polled the store ten times a second.
#[test]
fn waiting_runs_need_no_threads() {
    const RUNS: usize = 500;
    /// The threads that commit, that poll, that watch and that follow the feed.
    const THREADS_MAX: usize = 64 + 2 + 1 + 1;
    let harness = Harness::new();
    let model = Arc::new(Waiting::default());
    let mut work = agent(Vec::new(), Vec::new());
    work.model = model.clone();
    let work = Arc::new(work);
    let before = threads();
    let submit = |_| {
        let thread = harness.thread();
        let submitted = harness.engine.submit(&thread, Input::text("go"), work.clone(), &Cancel::new()).unwrap();
        (thread, submitted)
    };
    let submitted: Vec<_> = (0..RUNS).map(submit).collect();
    while model.0.load(Ordering::SeqCst) < RUNS {
        std::thread::yield_now();
    }
    let during = threads() - before;
    assert!(during <= THREADS_MAX, "{during} threads for {RUNS} runs");
    // Requested through the inbox, as another process does.
    for (thread, _) in &submitted {
        harness.store.post(request(thread, "stop", Request::Cancel)).unwrap();
    }
    for (_, submitted) in submitted {
        assert_eq!(submitted.wait(&mut |_| {}).unwrap().status.status(), Some(Status::Cancelled));
    }
    drop((harness, work));
    // They end with their engine.
    while threads() > before {
        std::thread::yield_now();
    }
}

#[test]
fn a_request_is_seen_whether_it_came_before_its_run_was_watched_or_after() {
    let harness = Harness::new();
    for posts_first in [true, false] {
        let thread = harness.thread();
        let model = Arc::new(Waiting::default());
        let mut work = agent(vec![Reply::Waits], Vec::new());
        work.model = model.clone();
        let post = || harness.store.post(request(&thread, "stop", Request::Kill)).unwrap();
        let store = harness.store.inner.another();
        harness.once_after(Reason::UserMessage, move |thread| {
            // The run has begun: a stop from now on is meant for it.
            if posts_first {
                store.post(request(thread, "stop", Request::Kill)).unwrap();
            }
        });
        std::thread::scope(|scope| {
            let waited = scope.spawn(|| {
                // A request that came first may be seen before the model is called.
                while !posts_first && model.0.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
                (!posts_first).then(post)
            });
            let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
            assert_eq!(ended.status.status(), Some(Status::Killed));
            waited.join().unwrap();
        });
        assert!(harness.store.pending(&thread).unwrap().is_empty());
    }
}

#[test]
fn running_time_ends_for_each_run_separately() {
    let harness = Harness::new();
    let limits = |seconds| Some(Limits { duration_seconds: Some(seconds), ..Limits::default() });
    let of = |limits| {
        let new = NewThread { limits, ..NewThread::of(AgentId::new("scribe").unwrap()) };
        harness.engine.create(new, Vec::new()).unwrap()
    };
    let short = of(limits(0));
    let long = of(limits(3600));
    let mut work = agent(Vec::new(), Vec::new());
    work.model = Arc::new(Waiting::default());
    let stop = Cancel::new();
    std::thread::scope(|scope| {
        let long = scope.spawn(|| harness.engine.send(&long, Input::text("go"), &work, &stop, &mut |_| {}).unwrap());
        let ended = harness.engine.send(&short, Input::text("go"), &work, &Cancel::new(), &mut |_| {}).unwrap();
        assert_eq!(
            (ended.status.status(), ended.code.as_deref()),
            (Some(Status::Suspended), Some("duration_exceeded"))
        );
        assert!(!long.is_finished());
        stop.say(Stop::Cancelled);
        assert_eq!(long.join().unwrap().status.status(), Some(Status::Cancelled));
    });
}

/// It was still in the inbox when the next run was watched.
#[test]
fn a_stop_of_a_run_that_has_ended_does_not_stop_the_next_one() {
    let harness = Harness::new();
    let mut slow = agent(Vec::new(), Vec::new());
    slow.model = Arc::new(Slow);
    for number in 0..10 {
        let thread = harness.thread();
        harness.send(&thread, Input::text("go"), &agent(vec![Reply::Says("done")], Vec::new())).0.unwrap();
        harness.store.post(request(&thread, &format!("late-{number}"), Request::Cancel)).unwrap();
        let ended = harness.send(&thread, Input::text("and on"), &slow).0.unwrap();
        assert_eq!(ended.status.status(), Some(Status::Completed));
        assert!(harness.waiting(&thread).is_empty());
    }
}

/// A model that takes a while, in which the watcher checks, and obeys a stop.
struct Slow;

crate::support::as_model!(Slow);

impl crate::support::Blocking for Slow {
    fn answer(&self, _: &Prompt<'_>, _: &mut dyn FnMut(Draft), cancel: &Cancel) -> Result<Answer, ModelError> {
        match cancel.wait(Duration::from_millis(30)) {
            Some(_) => Err(ModelError::Stopped { partial: Vec::new(), usage: None }),
            None => Ok(Answer::new(vec![Block::text("here")], End::Finished)),
        }
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

/// It was answered as if the run had ended, and the thread stayed suspended.
#[test]
fn a_stop_that_comes_while_a_run_is_suspended_ends_the_thread() {
    let harness = Harness::new();
    let thread = harness.thread();
    let failing = ModelError::Transient { why: "busy".to_owned() };
    let work = agent(vec![Reply::Fails(failing)], Vec::new());
    let store = harness.store.inner.another();
    harness.once_after(Reason::RunFinished, move |thread| {
        store.post(request(thread, "stop", Request::Cancel)).unwrap();
    });
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!(harness.loaded(&thread).manifest.status, Status::Cancelled);
    assert!(harness.waiting(&thread).is_empty());
}
