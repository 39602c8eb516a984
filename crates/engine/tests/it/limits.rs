//! Ceilings: reached, raised, and counted over restarts.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use selvedge_engine::assignment::Asking;
use selvedge_engine::{Assignment, Choice, Error, Input, Permission};
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

use crate::support::{Counting, House, Reply, agent, die, roles};

/// An agent that would call a tool for ever; each of its turns uses fifteen tokens.
fn restless(limits: Limits) -> (Assignment, Arc<std::sync::atomic::AtomicUsize>) {
    let tool = Counting::new("look", EffectClass::Pure);
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

/// How many turns were made under these ceilings, and what the thread waits for.
fn turns_under(limits: Limits, price: Option<Price>) -> (u64, Option<String>, Value, Value) {
    let house = House::new();
    let thread = house.thread();
    let (mut work, _) = restless(limits);
    work.price = price;
    let ended = house.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!(ended.status, Status::Suspended);
    let why = ended.suspended.unwrap();
    assert_eq!(why.reason, SuspendReason::Limit);
    (ended.run_cost.clone().unwrap().turns, why.code, why.current.unwrap(), why.maximum.unwrap())
}

#[test]
fn turns_end_at_their_ceiling() {
    for most in [1, 2, 5] {
        let code = Some("turns_exceeded".to_owned());
        assert_eq!(turns_under(turns(most), None), (most, code, json!(most), json!(most)));
    }
    // With none left at all, the model is not asked once.
    assert_eq!(turns_under(turns(0), None).0, 0);
}

#[test]
fn tokens_end_at_their_ceiling() {
    let under = |tokens| turns_under(Limits { tokens: Some(tokens), ..Limits::default() }, None);
    let code = || Some("tokens_exceeded".to_owned());
    assert_eq!(under(29), (2, code(), json!(30), json!(29)));
    assert_eq!(under(30), (2, code(), json!(30), json!(30)));
    assert_eq!(under(31), (3, code(), json!(45), json!(31)));
}

#[test]
fn running_time_ends_at_its_ceiling() {
    // Some looks at the clock lie between, a millisecond each.
    for (took_ms, reached) in [(9_900, None), (10_000, Some(json!(10))), (11_500, Some(json!(11)))] {
        let house = House::new();
        let thread = house.thread();
        let mut tool = Counting::new("look", EffectClass::Pure);
        let clock = house.clock.clone();
        tool.meanwhile = Arc::new(move |_| clock.set(after(clock.now(), Duration::from_millis(took_ms))));
        let call = Reply::Calls(vec![("a", "look", json!({}))]);
        let mut work = agent(vec![call, Reply::Says("seen")], vec![Arc::new(tool)]);
        work.limits = Limits { duration_seconds: Some(10), ..Limits::default() };
        let ended = house.send(&thread, Input::text("go"), &work).0.unwrap();
        let expected = if reached.is_some() { "duration_exceeded" } else { "completed" };
        assert_eq!((ended.code.as_deref().unwrap(), ended.suspended.and_then(|why| why.current)), (expected, reached));
    }
}

#[test]
fn money_ends_before_its_ceiling_and_is_counted_exactly() {
    // Ten tokens sent and five received: 0.00002 dollars a turn.
    let price = Price { input: "1".parse().unwrap(), output: "2".parse().unwrap(), ..Price::default() };
    let mut before = 0;
    for most in ["0.0002", "0.0003", "0.0004"] {
        let house = House::new();
        let thread = house.thread();
        let (mut work, _) = restless(Limits { spend: Some(most.parse().unwrap()), ..Limits::default() });
        (work.price, work.output_tokens_max) = (Some(price), Some(5));
        let ended = house.send(&thread, Input::text("go"), &work).0.unwrap();
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
fn a_model_without_a_price_is_refused_under_a_ceiling_of_money() {
    let house = House::new();
    let thread = house.thread();
    let (work, _) = restless(Limits { spend: Some("1".parse().unwrap()), ..Limits::default() });
    let error = house.send(&thread, Input::text("go"), &work).0.unwrap_err();
    assert_eq!(error.code(), "no_price");
    assert_eq!(house.loaded(&thread).manifest.status, Status::Created, "nothing was recorded");
}

#[test]
fn a_ceiling_reached_in_a_round_of_several_tools_lets_all_of_them_answer() {
    let house = House::new();
    let thread = house.thread();
    let tool = Counting::new("look", EffectClass::AtMostOnce);
    let ran = tool.ran.clone();
    let calls = vec![("a", "look", json!(1)), ("b", "look", json!(2)), ("c", "look", json!(3))];
    let mut work = agent(vec![Reply::Calls(calls), Reply::Says("seen")], vec![Arc::new(tool)]);
    work.limits = Limits { tokens: Some(15), ..Limits::default() };
    let ended = house.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!((ended.status.status().unwrap(), ran.load(Ordering::SeqCst)), (Status::Suspended, 3));
    assert_eq!(roles(&house.loaded(&thread)), "uattt");
    let raise = Limits { tokens: Some(100), ..Limits::default() };
    let ended =
        house.engine.resume(&thread, Input::nothing().raising(raise), &work, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!(
        (ended.status.status().unwrap(), ended.result.as_deref(), ran.load(Ordering::SeqCst)),
        (Status::Completed, Some("seen"), 3)
    );
}

#[test]
fn a_raise_after_a_restart_goes_on_and_is_on_record() {
    let house = House::new();
    let thread = house.thread();
    let (work, _) = restless(turns(2));
    house.send(&thread, Input::text("go"), &work).0.unwrap();
    let later = house.another();
    let resume = |input: Input| later.engine.resume(&thread, input, &work, &Cancel::new(), &mut |_| {});
    // Going on without a raise changes nothing: the turns of earlier runs count.
    assert_eq!(resume(Input::nothing()).unwrap().run_cost.unwrap().turns, 0);
    let lower = resume(Input::nothing().raising(turns(1))).unwrap_err();
    assert_eq!(lower.code(), "not_raised");
    let ended = resume(Input::nothing().raising(turns(5))).unwrap();
    assert_eq!((ended.run_cost.clone().unwrap().turns, ended.status.status().unwrap()), (3, Status::Suspended));
    assert_eq!(later.loaded(&thread).manifest.limits, Some(turns(5)));
    // Whoever speaks to it gives it everything anew.
    let ended = later.send(&thread, Input::text("more"), &work).0.unwrap();
    assert_eq!(ended.run_cost.clone().unwrap().turns, 5);
}

#[test]
fn a_raise_for_a_thread_that_runs_elsewhere_counts_at_once() {
    let house = House::new();
    let thread = house.thread();
    let other = house.another();
    let mut tool = Counting::new("look", EffectClass::Pure);
    let (raised, at) = (std::sync::atomic::AtomicBool::new(false), thread.clone());
    tool.meanwhile = Arc::new(move |_| {
        if !raised.swap(true, Ordering::SeqCst) {
            other.engine.raise(&at, &turns(3)).unwrap();
            // Whoever watches looks every tenth of a second.
            std::thread::sleep(Duration::from_millis(250));
        }
    });
    let call = |id| Reply::Calls(vec![(id, "look", json!(id))]);
    let mut work = agent(vec![call("a"), call("b"), call("c"), call("d")], vec![Arc::new(tool)]);
    work.limits = turns(1);
    let ended = house.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!((ended.run_cost.clone().unwrap().turns, ended.status.status().unwrap()), (3, Status::Suspended));
}

/// It was said to be left with whoever runs the thread, and was dropped there in silence.
#[test]
fn what_is_no_raise_is_refused_also_while_somebody_else_runs_the_thread() {
    let house = House::new();
    let new = NewThread { limits: Some(turns(5)), ..NewThread::of(AgentId::new("scribe").unwrap()) };
    let thread = house.engine.create(new, Vec::new()).unwrap();
    let other = house.another();
    let mut tool = Counting::new("look", EffectClass::Pure);
    let at = thread.clone();
    tool.meanwhile = Arc::new(move |_| {
        assert_eq!(other.engine.raise(&at, &turns(3)).unwrap_err().code(), "not_raised");
        assert_eq!(other.waiting(&at), []);
    });
    let work = agent(vec![Reply::Calls(vec![("a", "look", json!(1))]), Reply::Says("done")], vec![Arc::new(tool)]);
    assert_eq!(house.send(&thread, Input::text("go"), &work).0.unwrap().status, Status::Completed);
}

/// A tool that never answers by itself.
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
    let spec = Counting::new("stuck", EffectClass::AtMostOnce).spec().clone();
    let called = Reply::Calls(vec![("a", "stuck", json!({}))]);
    for (replies, shown) in [(vec![called, Reply::Says("on")], "uat"), (vec![Reply::Waits], "u")] {
        let house = House::new();
        let thread = house.thread();
        let mut work = agent(replies, vec![Arc::new(Stuck(spec.clone()))]);
        work.limits = Limits { duration_seconds: Some(1), ..Limits::default() };
        let began = Instant::now();
        let cancel = Cancel::new();
        let ended = house.engine.send(&thread, Input::text("go"), &work, &cancel, &mut |_| {}).unwrap();
        assert!(began.elapsed() < Duration::from_secs(15), "nobody waited for the tool or the model to wake up");
        let why = ended.suspended.unwrap();
        assert_eq!(
            (ended.status.status().unwrap(), why.code.as_deref()),
            (Status::Suspended, Some("duration_exceeded"))
        );
        assert_eq!((why.current, why.maximum), (Some(json!(1)), Some(json!(1))));
        assert_eq!(roles(&house.loaded(&thread)), shown);
        assert_eq!(cancel.said(), None, "whoever handed in the token may use it again");
    }
}

#[test]
fn time_that_is_over_in_the_middle_of_a_round_of_several_tools_keeps_what_has_answered() {
    let house = House::new();
    let thread = house.thread();
    let spec = Counting::new("stuck", EffectClass::AtMostOnce).spec().clone();
    let quick = Counting::new("look", EffectClass::AtMostOnce);
    let ran = quick.ran.clone();
    let calls = vec![("a", "look", json!(1)), ("b", "stuck", json!(2)), ("c", "look", json!(3))];
    let tools: Vec<Arc<dyn Tool>> = vec![Arc::new(quick), Arc::new(Stuck(spec))];
    let mut work = agent(vec![Reply::Calls(calls), Reply::Says("seen")], tools);
    work.limits = Limits { duration_seconds: Some(1), ..Limits::default() };
    let ended = house.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!(ended.suspended.unwrap().code.as_deref(), Some("duration_exceeded"));
    assert_eq!((roles(&house.loaded(&thread)).as_str(), ran.load(Ordering::SeqCst)), ("uattt", 2));
    let answer = |call| house.answer_of(&thread, &selvedge_model::CallId::new(call).unwrap()).unwrap();
    assert_eq!((answer("a"), answer("c")), (json!("done"), json!("done")));
    assert!(answer("b").to_string().contains("stopped"), "{}", answer("b"));
    // With more time it goes on behind the round: none of it is made again.
    let raise = Limits { duration_seconds: Some(60), ..Limits::default() };
    let input = Input::nothing().raising(raise);
    let ended = house.another().engine.resume(&thread, input, &work, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!((ended.status.status().unwrap(), ran.load(Ordering::SeqCst)), (Status::Completed, 2));
}

#[test]
fn what_a_run_used_that_was_cut_short_still_counts() {
    let house = House::new();
    let thread = house.thread();
    let mut tool = Counting::new("look", EffectClass::Pure);
    tool.meanwhile = Arc::new(|call| {
        if call.id.as_str() == "b" {
            die()
        }
    });
    let call = |id| Reply::Calls(vec![(id, "look", json!({}))]);
    let mut work = agent(vec![call("a"), call("b"), call("c"), call("d")], vec![Arc::new(tool)]);
    work.limits = turns(3);
    let cut = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| house.send(&thread, Input::text("go"), &work)));
    assert!(cut.is_err());
    work.tools = vec![Arc::new(Counting::new("look", EffectClass::Pure))];
    let ended = house.engine.resume(&thread, Input::nothing(), &work, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!(
        (ended.run_cost.clone().unwrap().turns, ended.status.status().unwrap()),
        (1, Status::Suspended),
        "two of the three turns were made before"
    );
    let loaded = house.loaded(&thread);
    assert_eq!((loaded.manifest.cost.turns, loaded.manifest.cost.input_tokens), (3, 30));
}

/// An agent whose tool works for a while by its process's clock, and then its process dies.
fn dying_after(process: &House, work: Duration) -> Assignment {
    let mut tool = Counting::new("look", EffectClass::Pure);
    let (clock, store) = (process.clock.clone(), process.store.clone());
    tool.meanwhile = Arc::new(move |_| {
        clock.set(after(clock.now(), work));
        // Long enough for a beat.
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

/// How long each run of a thread went on, as its log says.
fn durations(house: &House, thread: &ThreadId) -> Vec<u64> {
    house.store.runs(thread).unwrap().iter().map(|run| run.meta.total_cost().duration_ms).collect()
}

#[test]
fn the_time_that_a_run_went_on_after_its_last_commit_counts_though_its_process_died() {
    for (later, most) in [(Duration::from_secs(3600), 2500), (Duration::ZERO, 100)] {
        let house = House::new();
        let thread = house.thread();
        let first = house.another();
        let work = dying_after(&first, Duration::from_millis(1300));
        dies(|| _ = first.send(&thread, Input::text("go"), &work));
        drop((first, work));
        let late = house.another();
        late.clock.set(after(house.clock.now(), later));
        late.engine.recover().unwrap();
        let counted = durations(&house, &thread);
        // By the clock no time passed at all in the second case: then nothing went on either.
        let least = if later.is_zero() { 0 } else { 1000 };
        assert!(counted.len() == 1 && (least..most).contains(&counted[0]), "{counted:?} {later:?}");
    }
}

#[test]
fn a_run_that_is_killed_again_and_again_still_comes_to_the_end_of_its_time() {
    let house = House::new();
    let thread = house.thread();
    let with = |process: &House| {
        let mut work = dying_after(process, Duration::from_millis(1300));
        work.limits = Limits { duration_seconds: Some(2), ..Limits::default() };
        work
    };
    let first = house.another();
    dies(|| _ = first.send(&thread, Input::text("go"), &with(&first)));
    drop(first);
    let mut now = house.clock.now();
    let mut alive = || {
        let next = house.another();
        now = after(now, Duration::from_secs(3600));
        next.clock.set(now);
        next
    };
    let resume =
        |house: &House| house.engine.resume(&thread, Input::nothing(), with(house), &Cancel::new(), &mut |_| {});
    dies(|| _ = resume(&alive()));
    // With no time left, the call that is still open is not made a third time: it would kill this one too.
    let ended = resume(&alive()).unwrap();
    assert_eq!(
        (ended.status.status().unwrap(), ended.suspended.unwrap().code.as_deref()),
        (Status::Suspended, Some("duration_exceeded"))
    );
    let counted = durations(&house, &thread);
    assert!(counted.len() == 3 && counted[..2].iter().sum::<u64>() >= 2000 && counted[2] < 100, "{counted:?}");
}

#[test]
fn lives_shorter_than_a_second_come_to_the_end_of_their_time_too() {
    let house = House::new();
    let thread = house.thread();
    let with = |process: &House| {
        let mut work = dying_after(process, Duration::from_millis(400));
        work.limits = Limits { duration_seconds: Some(1), ..Limits::default() };
        work
    };
    let first = house.another();
    dies(|| _ = first.send(&thread, Input::text("go"), &with(&first)));
    drop(first);
    let mut now = house.clock.now();
    let mut deaths = 1;
    let ended = loop {
        let next = house.another();
        now = after(now, Duration::from_secs(3600));
        next.clock.set(now);
        let work = with(&next);
        let resume = || next.engine.resume(&thread, Input::nothing(), &work, &Cancel::new(), &mut |_| {});
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(resume)) {
            Ok(ended) => break ended.unwrap(),
            Err(_) => deaths += 1,
        }
        assert!(deaths < 10, "{:?}", durations(&house, &thread));
    };
    assert_eq!(ended.suspended.unwrap().code.as_deref(), Some("duration_exceeded"));
    // Each lasted 400 ms, of which less than a quarter of a second was lost.
    let counted = durations(&house, &thread);
    assert!(counted[..deaths].iter().all(|lived| *lived > 150), "{counted:?}");
}

#[test]
fn a_child_is_raised_as_far_as_its_parent_and_no_further() {
    let house = House::new();
    let of = |limits, parent_id| {
        let new = NewThread { limits: Some(limits), parent_id, ..NewThread::of(AgentId::new("scribe").unwrap()) };
        house.engine.create(new, Vec::new()).unwrap()
    };
    let parent = of(turns(3), None);
    let child = of(turns(1), Some(parent.clone()));
    let (work, _) = restless(Limits::default());
    let raise = |thread: &ThreadId, most| {
        house.engine.resume(thread, Input::nothing().raising(turns(most)), &work, &Cancel::new(), &mut |_| {})
    };
    assert_eq!(house.send(&child, Input::text("go"), &work).0.unwrap().cost.turns, 1);
    let refused = raise(&child, 4).unwrap_err();
    assert_eq!((refused.code(), refused.kind()), ("above_parent", selvedge_model::Kind::Denied));
    let command = format!("`selvedge resume {parent} --raise turns=4`");
    assert!(refused.hint().is_some_and(|hint| hint.contains(&command)), "{:?}", refused.hint());
    assert_eq!(house.loaded(&child).manifest.limits, Some(turns(1)), "nothing was recorded");
    assert_eq!(raise(&child, 3).unwrap().status, Status::Suspended);
    // The command that is hinted at helps.
    house.send(&parent, Input::text("go"), &work).0.unwrap();
    raise(&parent, 4).unwrap();
    assert_eq!(raise(&child, 4).unwrap().status, Status::Suspended);
    assert_eq!(house.loaded(&child).manifest.limits, Some(turns(4)));
}

#[test]
fn each_turn_says_what_it_used() {
    let house = House::new();
    let thread = house.thread();
    let work = agent(vec![Reply::Says("hello")], Vec::new());
    let mut used = Vec::new();
    house
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
fn a_run_that_goes_in_circles_waits_for_somebody_and_goes_on_when_told_to() {
    let house = House::new();
    let thread = house.thread();
    let same = |id| Reply::Calls(vec![(id, "look", json!({"at": "the same"}))]);
    let tools = || -> Vec<Arc<dyn Tool>> { vec![Arc::new(Counting::new("look", EffectClass::Pure))] };
    let mut work = agent(vec![same("a"), same("b"), same("c"), same("d"), Reply::Says("ah")], tools());
    work.stops = Stops { repeated_calls: 3, ..Stops::default() };
    let ended = house.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!(
        (ended.status.status().unwrap(), ended.code.as_deref().unwrap(), ended.run_cost.clone().unwrap().turns),
        (Status::Suspended, "loop_detected", 3)
    );
    let ended = house.engine.resume(&thread, Input::nothing(), &work, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("ah")));
    let thread = house.thread();
    work.stops = Stops { stop_on_tools: vec!["look".to_owned()], ..Stops::default() };
    let ended = house.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!(
        (ended.status.status().unwrap(), ended.code.as_deref().unwrap(), ended.run_cost.clone().unwrap().turns),
        (Status::Completed, "tool_called", 1)
    );
    assert!(matches!(house.send(&thread, Input::nothing(), &work).0, Ok(_) | Err(Error::NotRunnable { .. })));
}

/// Every approval begins a run, and every run began to count anew: what was approved again and again never stopped.
#[test]
fn a_loop_is_one_also_when_somebody_allows_each_of_its_calls() {
    for (choice, stops, code) in [
        (Choice::Approve(None), Stops { repeated_calls: 2, ..Stops::default() }, "loop_detected"),
        (Choice::Deny(None), Stops { consecutive_errors: 2, ..Stops::default() }, "consecutive_errors_exceeded"),
    ] {
        let house = House::new();
        let thread = house.thread();
        let same = |id| Reply::Calls(vec![(id, "pay", json!({"to": "anna"}))]);
        let pay = Arc::new(Counting::new("pay", EffectClass::AtMostOnce));
        let mut work = agent(vec![same("a"), same("b"), same("c"), same("d"), Reply::Says("ah")], vec![pay]);
        work.stops = stops;
        work.gate = Arc::new(|_, _| Permission::Ask(Asking::default()));
        let allow = |call: &str| {
            house.engine.decide(&thread, &CallId::new(call).unwrap(), choice.clone(), "ann", &work).unwrap();
            house.engine.resume(&thread, Input::nothing(), &work, &Cancel::new(), &mut |_| {}).unwrap()
        };
        assert_eq!(house.send(&thread, Input::text("go"), &work).0.unwrap().code.as_deref(), Some("approval"));
        assert_eq!(allow("a").code.as_deref(), Some("approval"));
        let ended = allow("b");
        assert_eq!((ended.status.status().unwrap(), ended.code.as_deref().unwrap()), (Status::Suspended, code));
        // Whoever speaks begins anew.
        assert_eq!(house.send(&thread, Input::text("once more"), &work).0.unwrap().code.as_deref(), Some("approval"));
        assert_eq!(allow("c").code.as_deref(), Some("approval"));
        assert_eq!(allow("d").code.as_deref(), Some(code));
        crate::replay::assert_identical(&house, &thread, &work);
    }
}
