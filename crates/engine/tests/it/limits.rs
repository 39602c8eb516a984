//! Limits: reached, raised, and counted over restarts.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use selvedge_engine::run_config::NeededApproval;
use selvedge_engine::{Choice, Error, Input, Permission, RunConfig};
use selvedge_items::config::Stops;
use selvedge_model::event::{EffectClass, Process, SuspendReason};
use selvedge_model::limits::Limits;
use selvedge_model::tool::{Dispatch, Reconciled, Started};
use selvedge_model::{
    AgentId, Call, CallId, Cancel, Classify, Clock, Event, NewThread, Price, Status, ThreadId, Timestamp, Tool,
    ToolError, ToolSpec,
};
use selvedge_store::Registry;
use serde_json::{Value, json};

use crate::support::{CountingTool, Harness, Reply, agent, die, roles};

/// An agent that would call a tool for ever; each of its turns uses fifteen tokens.
fn restless(limits: Limits) -> (RunConfig, Arc<std::sync::atomic::AtomicUsize>) {
    let tool = CountingTool::new("look", EffectClass::Pure);
    let ran = tool.ran.clone();
    const IDS: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
    let replies = IDS.iter().enumerate().map(|(n, id)| Reply::Calls(vec![(id, "look", json!({"n": n}))])).collect();
    let mut work = agent(replies, vec![Arc::new(tool)]);
    work.limits = limits;
    (work, ran)
}

fn turns(most: u64) -> Limits {
    Limits { turns: Some(most), ..Limits::default() }
}

/// How many turns were made under these limits, and why the thread is suspended.
fn turns_under(limits: Limits, price: Option<Price>) -> (u64, Option<String>, Value, Value) {
    let harness = Harness::new();
    let thread = harness.thread();
    let (mut work, _) = restless(limits);
    work.price = price;
    let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!(ended.status, Status::Suspended);
    let why = ended.suspended.unwrap();
    assert_eq!(why.reason, SuspendReason::Limit);
    (ended.run_cost.clone().unwrap().turns, why.code, why.current.unwrap(), why.maximum.unwrap())
}

#[test]
fn turns_end_at_their_limit() {
    for most in [1, 2, 5] {
        let code = Some("turns_exceeded".to_owned());
        assert_eq!(turns_under(turns(most), None), (most, code, json!(most), json!(most)));
    }
    // With none left at all, the model is not called once.
    assert_eq!(turns_under(turns(0), None).0, 0);
}

#[test]
fn tokens_end_at_their_limit() {
    let under = |tokens| turns_under(Limits { tokens: Some(tokens), ..Limits::default() }, None);
    let code = || Some("tokens_exceeded".to_owned());
    assert_eq!(under(29), (2, code(), json!(30), json!(29)));
    assert_eq!(under(30), (2, code(), json!(30), json!(30)));
    assert_eq!(under(31), (3, code(), json!(45), json!(31)));
}

#[test]
fn running_time_ends_at_its_limit() {
    // The clock is read a few times in between, a millisecond each.
    for (took_ms, reached) in [(9_900, None), (10_000, Some(json!(10))), (11_500, Some(json!(11)))] {
        let harness = Harness::new();
        let thread = harness.thread();
        let mut tool = CountingTool::new("look", EffectClass::Pure);
        let clock = harness.clock.clone();
        tool.meanwhile = Arc::new(move |_| clock.set(after(clock.now(), Duration::from_millis(took_ms))));
        let call = Reply::Calls(vec![("a", "look", json!({}))]);
        let mut work = agent(vec![call, Reply::Says("seen")], vec![Arc::new(tool)]);
        work.limits = Limits { duration_seconds: Some(10), ..Limits::default() };
        let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
        let expected = if reached.is_some() { "duration_exceeded" } else { "completed" };
        assert_eq!((ended.code.as_deref().unwrap(), ended.suspended.and_then(|why| why.current)), (expected, reached));
    }
}

#[test]
fn money_ends_before_its_limit_and_is_counted_exactly() {
    // Ten tokens sent and five received: 0.00002 dollars a turn.
    let price = Price { input: "1".parse().unwrap(), output: "2".parse().unwrap(), ..Price::default() };
    let mut before = 0;
    for most in ["0.0002", "0.0003", "0.0004"] {
        let harness = Harness::new();
        let thread = harness.thread();
        let (mut work, _) = restless(Limits { spend: Some(most.parse().unwrap()), ..Limits::default() });
        (work.price, work.output_tokens_max) = (Some(price), Some(5));
        let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
        let why = ended.suspended.unwrap();
        assert_eq!((why.reason, why.code.as_deref()), (SuspendReason::Budget, Some("spend_exceeded")));
        let turns = ended.run_cost.clone().unwrap().turns;
        assert_eq!(
            (why.current, why.maximum),
            (Some(ended.run_cost.clone().unwrap().spend.to_json()), Some(json!(most.parse::<f64>().unwrap())))
        );
        assert_eq!(ended.run_cost.clone().unwrap().spend.nanos(), 20_000 * i64::try_from(turns).unwrap());
        assert!(
            ended.run_cost.clone().unwrap().spend < most.parse().unwrap(),
            "the next turn might have cost more than was left"
        );
        assert!((most == "0.0002") == (turns == 0) && turns >= before, "{turns} turns under {most}");
        before = turns;
    }
}

#[test]
fn a_model_without_a_price_is_refused_under_a_money_limit() {
    let harness = Harness::new();
    let thread = harness.thread();
    let (work, _) = restless(Limits { spend: Some("1".parse().unwrap()), ..Limits::default() });
    let error = harness.send(&thread, Input::text("go"), &work).0.unwrap_err();
    assert_eq!(error.code(), "price_unknown");
    assert_eq!(harness.loaded(&thread).manifest.status, Status::Created, "nothing was recorded");
}

#[test]
fn a_limit_that_is_reached_in_a_round_of_several_tools_lets_all_of_them_answer() {
    let harness = Harness::new();
    let thread = harness.thread();
    let tool = CountingTool::new("look", EffectClass::AtMostOnce);
    let ran = tool.ran.clone();
    let calls = vec![("a", "look", json!(1)), ("b", "look", json!(2)), ("c", "look", json!(3))];
    let mut work = agent(vec![Reply::Calls(calls), Reply::Says("seen")], vec![Arc::new(tool)]);
    work.limits = Limits { tokens: Some(15), ..Limits::default() };
    let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!((ended.status.status().unwrap(), ran.load(Ordering::SeqCst)), (Status::Suspended, 3));
    assert_eq!(roles(&harness.loaded(&thread)), "uattt");
    let raise = Limits { tokens: Some(100), ..Limits::default() };
    let ended =
        harness.engine.resume(&thread, Input::nothing().raising(raise), &work, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!(
        (ended.status.status().unwrap(), ended.result.as_deref(), ran.load(Ordering::SeqCst)),
        (Status::Completed, Some("seen"), 3)
    );
}

#[test]
fn a_raise_after_a_restart_resumes_the_thread_and_is_on_record() {
    let harness = Harness::new();
    let thread = harness.thread();
    let (work, _) = restless(turns(2));
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    let later = harness.another();
    let resume = |input: Input| later.engine.resume(&thread, input, &work, &Cancel::new(), &mut |_| {});
    // A resume without a raise changes nothing: the turns of earlier runs count.
    assert_eq!(resume(Input::nothing()).unwrap().run_cost.unwrap().turns, 0);
    let lower = resume(Input::nothing().raising(turns(1))).unwrap_err();
    assert_eq!(lower.code(), "limit_not_raised");
    let ended = resume(Input::nothing().raising(turns(5))).unwrap();
    assert_eq!((ended.run_cost.clone().unwrap().turns, ended.status.status().unwrap()), (3, Status::Suspended));
    assert_eq!(later.loaded(&thread).manifest.limits, Some(turns(5)));
    // A new message resets all limits.
    let ended = later.send(&thread, Input::text("more"), &work).0.unwrap();
    assert_eq!(ended.run_cost.clone().unwrap().turns, 5);
}

#[test]
fn a_raise_for_a_thread_that_another_process_runs_counts_at_once() {
    let harness = Harness::new();
    let thread = harness.thread();
    let other = harness.another();
    let mut tool = CountingTool::new("look", EffectClass::Pure);
    let raised = std::sync::atomic::AtomicBool::new(false);
    let at = thread.clone();
    tool.meanwhile = Arc::new(move |_| {
        if !raised.swap(true, Ordering::SeqCst) {
            other.engine.raise(&at, &turns(3)).unwrap();
            // The watcher checks ten times a second.
            std::thread::sleep(Duration::from_millis(250));
        }
    });
    let call = |id| Reply::Calls(vec![(id, "look", json!({"id": id}))]);
    let mut work = agent(vec![call("a"), call("b"), call("c"), call("d")], vec![Arc::new(tool)]);
    work.limits = turns(1);
    let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!((ended.run_cost.clone().unwrap().turns, ended.status.status().unwrap()), (3, Status::Suspended));
}

/// It was queued for the process that runs the thread, and dropped there without a notice.
#[test]
fn a_change_that_is_not_a_raise_is_refused_even_while_another_process_runs_the_thread() {
    let harness = Harness::new();
    let new = NewThread { limits: Some(turns(5)), ..NewThread::of(AgentId::new("scribe").unwrap()) };
    let thread = harness.engine.create(new, Vec::new()).unwrap();
    let other = harness.another();
    let mut tool = CountingTool::new("look", EffectClass::Pure);
    let at = thread.clone();
    tool.meanwhile = Arc::new(move |_| {
        assert_eq!(other.engine.raise(&at, &turns(3)).unwrap_err().code(), "limit_not_raised");
        assert_eq!(other.waiting(&at), []);
    });
    let work = agent(vec![Reply::Calls(vec![("a", "look", json!(1))]), Reply::Says("done")], vec![Arc::new(tool)]);
    assert_eq!(harness.send(&thread, Input::text("go"), &work).0.unwrap().status, Status::Completed);
}

/// A tool that never returns by itself.
struct Stuck(ToolSpec);

impl Started for Stuck {
    fn process(&self) -> Option<Process> {
        None
    }

    fn dispatch(self: Box<Self>, cancel: &Cancel) -> Dispatch {
        let stopped = cancel.stopped();
        Dispatch::future(async move {
            stopped.await;
            Err(ToolError::Stopped { tool: self.0.name.clone() })
        })
    }
}

impl Tool for Stuck {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn start(&self, _: &Call) -> Result<Box<dyn Started>, ToolError> {
        Ok(Box::new(Self(self.0.clone())))
    }

    fn reconcile(&self, _: &Call, _: &Cancel) -> Reconciled {
        Reconciled::Unknown
    }
}

#[test]
fn a_stuck_tool_and_a_stuck_model_are_ended_by_the_running_time() {
    let spec = CountingTool::new("stuck", EffectClass::AtMostOnce).spec().clone();
    let called = Reply::Calls(vec![("a", "stuck", json!({}))]);
    for (replies, shown) in [(vec![called, Reply::Says("on")], "uat"), (vec![Reply::Waits], "u")] {
        let harness = Harness::new();
        let thread = harness.thread();
        let mut work = agent(replies, vec![Arc::new(Stuck(spec.clone()))]);
        work.limits = Limits { duration_seconds: Some(1), ..Limits::default() };
        let began = Instant::now();
        let cancel = Cancel::new();
        let ended = harness.engine.send(&thread, Input::text("go"), &work, &cancel, &mut |_| {}).unwrap();
        assert!(began.elapsed() < Duration::from_secs(15), "the run waited for the tool or the model to wake up");
        let why = ended.suspended.unwrap();
        assert_eq!(
            (ended.status.status().unwrap(), why.code.as_deref()),
            (Status::Suspended, Some("duration_exceeded"))
        );
        assert_eq!((why.current, why.maximum), (Some(json!(1)), Some(json!(1))));
        assert_eq!(roles(&harness.loaded(&thread)), shown);
        assert_eq!(cancel.said(), None, "the caller may use its token again");
    }
}

#[test]
fn when_the_time_ends_in_a_round_of_several_tools_the_results_so_far_are_kept() {
    let harness = Harness::new();
    let thread = harness.thread();
    let spec = CountingTool::new("stuck", EffectClass::AtMostOnce).spec().clone();
    let quick = CountingTool::new("look", EffectClass::AtMostOnce);
    let ran = quick.ran.clone();
    let calls = vec![("a", "look", json!(1)), ("b", "stuck", json!(2)), ("c", "look", json!(3))];
    let tools: Vec<Arc<dyn Tool>> = vec![Arc::new(quick), Arc::new(Stuck(spec))];
    let mut work = agent(vec![Reply::Calls(calls), Reply::Says("seen")], tools);
    work.limits = Limits { duration_seconds: Some(1), ..Limits::default() };
    let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!(ended.suspended.unwrap().code.as_deref(), Some("duration_exceeded"));
    assert_eq!((roles(&harness.loaded(&thread)).as_str(), ran.load(Ordering::SeqCst)), ("uattt", 2));
    let answer = |call| harness.answer_of(&thread, &selvedge_model::CallId::new(call).unwrap()).unwrap();
    assert_eq!((answer("a"), answer("c")), (json!("done"), json!("done")));
    assert!(answer("b").to_string().contains("stopped"), "{}", answer("b"));
    // With more time it continues after the round: none of its calls is made again.
    let raise = Limits { duration_seconds: Some(60), ..Limits::default() };
    let input = Input::nothing().raising(raise);
    let ended = harness.another().engine.resume(&thread, input, &work, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!((ended.status.status().unwrap(), ran.load(Ordering::SeqCst)), (Status::Completed, 2));
}

#[test]
fn the_usage_of_an_interrupted_run_still_counts() {
    let harness = Harness::new();
    let thread = harness.thread();
    let mut tool = CountingTool::new("look", EffectClass::Pure);
    tool.meanwhile = Arc::new(|call| {
        if call.id.as_str() == "b" {
            die()
        }
    });
    let call = |id| Reply::Calls(vec![(id, "look", json!({}))]);
    let mut work = agent(vec![call("a"), call("b"), call("c"), call("d")], vec![Arc::new(tool)]);
    work.limits = turns(3);
    let cut =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| harness.send(&thread, Input::text("go"), &work)));
    assert!(cut.is_err());
    work.tools = vec![Arc::new(CountingTool::new("look", EffectClass::Pure))];
    let ended = harness.engine.resume(&thread, Input::nothing(), &work, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!(
        (ended.run_cost.clone().unwrap().turns, ended.status.status().unwrap()),
        (1, Status::Suspended),
        "two of the three turns were made before"
    );
    let loaded = harness.loaded(&thread);
    assert_eq!((loaded.manifest.cost.turns, loaded.manifest.cost.input_tokens), (3, 30));
}

/// An agent whose tool works for a while by its process's clock, and then its process dies.
fn dying_after(process: &Harness, work: Duration) -> RunConfig {
    let mut tool = CountingTool::new("look", EffectClass::Pure);
    let clock = process.clock.clone();
    let store = process.store.clone();
    tool.meanwhile = Arc::new(move |_| {
        clock.set(after(clock.now(), work));
        // Long enough for a heartbeat.
        std::thread::sleep(Duration::from_millis(350));
        store.is_dead.store(true, std::sync::atomic::Ordering::SeqCst);
        die()
    });
    agent(vec![Reply::Calls(vec![("a", "look", json!({}))])], vec![Arc::new(tool)])
}

fn after(at: Timestamp, passed: Duration) -> Timestamp {
    Timestamp::from_micros(at.as_micros() + i64::try_from(passed.as_micros()).unwrap())
}

fn dies(run: impl FnOnce()) {
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
}

/// How long each run of a thread lasted, by its log.
fn durations(harness: &Harness, thread: &ThreadId) -> Vec<u64> {
    harness.store.runs(thread).unwrap().iter().map(|run| run.meta.total_cost().duration_ms).collect()
}

#[test]
fn the_running_time_after_the_last_commit_counts_even_if_the_process_died() {
    for (later, most) in [(Duration::from_secs(3600), 2500), (Duration::ZERO, 100)] {
        let harness = Harness::new();
        let thread = harness.thread();
        let first = harness.another();
        let work = dying_after(&first, Duration::from_millis(1300));
        dies(|| _ = first.send(&thread, Input::text("go"), &work));
        drop((first, work));
        let late = harness.another();
        late.clock.set(after(harness.clock.now(), later));
        late.engine.recover().unwrap();
        let counted = durations(&harness, &thread);
        // By the clock no time passed at all in the second case: then none is counted.
        let least = if later.is_zero() { 0 } else { 1000 };
        assert!(counted.len() == 1 && (least..most).contains(&counted[0]), "{counted:?} {later:?}");
    }
}

#[test]
fn a_run_that_is_killed_again_and_again_still_reaches_its_time_limit() {
    let harness = Harness::new();
    let thread = harness.thread();
    let with = |process: &Harness| {
        let mut work = dying_after(process, Duration::from_millis(1300));
        work.limits = Limits { duration_seconds: Some(2), ..Limits::default() };
        work
    };
    let first = harness.another();
    dies(|| _ = first.send(&thread, Input::text("go"), &with(&first)));
    drop(first);
    let mut now = harness.clock.now();
    let mut alive = || {
        let next = harness.another();
        now = after(now, Duration::from_secs(3600));
        next.clock.set(now);
        next
    };
    let resume = |harness: &Harness| {
        harness.engine.resume(&thread, Input::nothing(), with(harness), &Cancel::new(), &mut |_| {})
    };
    dies(|| _ = resume(&alive()));
    // With no time left, the open call is not made a third time: it would kill this process, too.
    let ended = resume(&alive()).unwrap();
    assert_eq!(
        (ended.status.status().unwrap(), ended.suspended.unwrap().code.as_deref()),
        (Status::Suspended, Some("duration_exceeded"))
    );
    let counted = durations(&harness, &thread);
    assert!(counted.len() == 3 && counted[..2].iter().sum::<u64>() >= 2000 && counted[2] < 100, "{counted:?}");
}

#[test]
fn processes_that_live_less_than_a_second_reach_the_time_limit_too() {
    let harness = Harness::new();
    let thread = harness.thread();
    let with = |process: &Harness| {
        let mut work = dying_after(process, Duration::from_millis(400));
        work.limits = Limits { duration_seconds: Some(1), ..Limits::default() };
        work
    };
    let first = harness.another();
    dies(|| _ = first.send(&thread, Input::text("go"), &with(&first)));
    drop(first);
    let mut now = harness.clock.now();
    let mut deaths = 1;
    let ended = loop {
        let next = harness.another();
        now = after(now, Duration::from_secs(3600));
        next.clock.set(now);
        let work = with(&next);
        let resume = || next.engine.resume(&thread, Input::nothing(), &work, &Cancel::new(), &mut |_| {});
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(resume)) {
            Ok(ended) => break ended.unwrap(),
            Err(_) => deaths += 1,
        }
        assert!(deaths < 10, "{:?}", durations(&harness, &thread));
    };
    assert_eq!(ended.suspended.unwrap().code.as_deref(), Some("duration_exceeded"));
    // Each lasted 400 ms, of which less than a quarter of a second was lost.
    let counted = durations(&harness, &thread);
    assert!(counted[..deaths].iter().all(|lived| *lived > 150), "{counted:?}");
}

#[test]
fn a_child_is_raised_as_far_as_its_parent_and_no_further() {
    let harness = Harness::new();
    let of = |limits, parent_id| {
        let new = NewThread { limits: Some(limits), parent_id, ..NewThread::of(AgentId::new("scribe").unwrap()) };
        harness.engine.create(new, Vec::new()).unwrap()
    };
    let parent = of(turns(3), None);
    let child = of(turns(1), Some(parent.clone()));
    let (work, _) = restless(Limits::default());
    let raise = |thread: &ThreadId, most| {
        harness.engine.resume(thread, Input::nothing().raising(turns(most)), &work, &Cancel::new(), &mut |_| {})
    };
    assert_eq!(harness.send(&child, Input::text("go"), &work).0.unwrap().cost.turns, 1);
    let refused = raise(&child, 4).unwrap_err();
    assert_eq!((refused.code(), refused.kind()), ("limit_above_parent", selvedge_model::Kind::Denied));
    let command = format!("`selvedge resume {parent} --raise turns=4`");
    assert!(refused.hint().is_some_and(|hint| hint.contains(&command)), "{:?}", refused.hint());
    assert_eq!(harness.loaded(&child).manifest.limits, Some(turns(1)), "nothing was recorded");
    assert_eq!(raise(&child, 3).unwrap().status, Status::Suspended);
    // The hinted command helps.
    harness.send(&parent, Input::text("go"), &work).0.unwrap();
    raise(&parent, 4).unwrap();
    assert_eq!(raise(&child, 4).unwrap().status, Status::Suspended);
    assert_eq!(harness.loaded(&child).manifest.limits, Some(turns(4)));
}

#[test]
fn each_turn_records_its_usage() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = agent(vec![Reply::Says("hello")], Vec::new());
    let mut used = Vec::new();
    harness
        .engine
        .send(&thread, Input::text("hi"), &work, &Cancel::new(), &mut |told| {
            if let selvedge_engine::RunEvent::Committed { events, .. } = told {
                used.extend(events.iter().filter_map(|event| match event {
                    Event::Usage(usage) => Some((usage.model.clone(), usage.cost.tokens())),
                    _ => None,
                }));
            }
        })
        .unwrap();
    assert_eq!(used, [("listed".to_owned(), 15)]);
}

#[test]
fn a_run_that_repeats_itself_is_suspended_and_continues_when_it_is_resumed() {
    let harness = Harness::new();
    let thread = harness.thread();
    let same = |id| Reply::Calls(vec![(id, "look", json!({"at": "the same"}))]);
    let tools = || -> Vec<Arc<dyn Tool>> { vec![Arc::new(CountingTool::new("look", EffectClass::Pure))] };
    let mut work = agent(vec![same("a"), same("b"), same("c"), same("d"), Reply::Says("ah")], tools());
    work.stops = Stops { repeated_calls: 3, ..Stops::default() };
    let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!(
        (ended.status.status().unwrap(), ended.code.as_deref().unwrap(), ended.run_cost.clone().unwrap().turns),
        (Status::Suspended, "loop_detected", 3)
    );
    let ended = harness.engine.resume(&thread, Input::nothing(), &work, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("ah")));
    let thread = harness.thread();
    work.stops = Stops { stop_on_tools: vec!["look".to_owned()], ..Stops::default() };
    let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!(
        (ended.status.status().unwrap(), ended.code.as_deref().unwrap(), ended.run_cost.clone().unwrap().turns),
        (Status::Completed, "tool_called", 1)
    );
    assert!(matches!(harness.send(&thread, Input::nothing(), &work).0, Ok(_) | Err(Error::NotRunnable { .. })));
}

/// Every approval begins a run, and every run reset the count: a loop that was approved again and again never stopped.
#[test]
fn a_loop_is_detected_even_if_each_of_its_calls_is_approved() {
    for (choice, stops, code) in [
        (Choice::Approve(None), Stops { repeated_calls: 2, ..Stops::default() }, "loop_detected"),
        (Choice::Deny(None), Stops { consecutive_errors: 2, ..Stops::default() }, "consecutive_errors_exceeded"),
    ] {
        let harness = Harness::new();
        let thread = harness.thread();
        let same = |id| Reply::Calls(vec![(id, "pay", json!({"to": "anna"}))]);
        let pay = Arc::new(CountingTool::new("pay", EffectClass::AtMostOnce));
        let mut work = agent(vec![same("a"), same("b"), same("c"), same("d"), Reply::Says("ah")], vec![pay]);
        work.stops = stops;
        work.gate = Arc::new(|_, _| Permission::Ask(NeededApproval::default()));
        let allow = |call: &str| {
            harness.engine.decide(&thread, &CallId::new(call).unwrap(), choice.clone(), "ann", &work).unwrap();
            harness.engine.resume(&thread, Input::nothing(), &work, &Cancel::new(), &mut |_| {}).unwrap()
        };
        assert_eq!(harness.send(&thread, Input::text("go"), &work).0.unwrap().code.as_deref(), Some("approval"));
        assert_eq!(allow("a").code.as_deref(), Some("approval"));
        let ended = allow("b");
        assert_eq!((ended.status.status().unwrap(), ended.code.as_deref().unwrap()), (Status::Suspended, code));
        // A message resets the count.
        assert_eq!(harness.send(&thread, Input::text("once more"), &work).0.unwrap().code.as_deref(), Some("approval"));
        assert_eq!(allow("c").code.as_deref(), Some("approval"));
        assert_eq!(allow("d").code.as_deref(), Some(code));
        crate::replay::assert_identical(&harness, &thread, &work);
    }
}
