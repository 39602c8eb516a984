//! Tools and rules that change between a question, its answer and the call.

use super::*;

#[test]
fn a_tool_that_was_redefined_after_it_was_allowed_is_asked_about_again() {
    let (house, mut payer) = (House::new(), payer(one()));
    let thread = house.asked(&payer);
    let asked = house.loaded(&thread).manifest.asks[0].action_hash;
    house.decide(&thread, "p1", Choice::Approve(None), &payer).unwrap();
    let mut other = Counting::new("pay", EffectClass::AtMostOnce);
    other.redefine();
    let ran = other.ran.clone();
    payer.work.tools = vec![Arc::new(other) as Arc<dyn Tool>];
    let mut ended = house.go_on(&thread, &payer);
    assert_eq!((ended.status.status().unwrap(), ran.load(Ordering::SeqCst)), (Status::Suspended, 0));
    let again = ended.asks.remove(0);
    assert!(again.action_hash != asked && again.redefined, "whoever is asked again is told why: {again:?}");
    // It is asked once more as it was, and that it changed is still said.
    assert_eq!(house.go_on(&thread, &payer).asks, [again]);
    house.decide(&thread, "p1", Choice::Approve(None), &payer).unwrap();
    assert_eq!(
        (house.go_on(&thread, &payer).status.status().unwrap(), ran.load(Ordering::SeqCst)),
        (Status::Completed, 1)
    );
    let told = house.answer_of(&thread, &call("p1")).unwrap().to_string();
    assert!(told.contains("the tool changed since this call was asked about"), "the model is told too: {told}");
}

/// Once its rule was gone, a call was made that nobody had allowed, also against a message and after a deny.
#[test]
fn what_was_asked_is_not_made_without_a_word_though_its_rule_is_gone() {
    let allowed = || Arc::new(|_: &selvedge_model::ToolSpec, _: &Value| Permission::Allowed);
    // Nobody said anything: it is asked still.
    let (house, mut payer) = (House::new(), payer(two()));
    let thread = house.asked(&payer);
    payer.work.gate = allowed();
    let ended = house.go_on(&thread, &payer);
    assert_eq!((ended.status.status().unwrap(), ended.asks.len()), (Status::Suspended, 2));
    // One of them is allowed, and each goes by itself.
    payer.work.wait = Wait::Each;
    house.decide(&thread, "p2", Choice::Approve(None), &payer).unwrap();
    let ended = house.go_on(&thread, &payer);
    assert_eq!(
        (ended.status.status().unwrap(), ended.asks.len(), payer.paid.load(Ordering::SeqCst)),
        (Status::Suspended, 1, 1)
    );
    // Somebody speaks instead.
    let ended = house.send(&thread, Input::text("pay nobody"), &payer.work).0.unwrap();
    assert_eq!((ended.status.status().unwrap(), payer.paid.load(Ordering::SeqCst)), (Status::Completed, 1));
    assert!(house.results(&thread).iter().any(|(_, text)| text.contains("a new message came")));
}

/// Gives the payer another tool of the same name, and no rule about it any more; gives how often that one ran.
fn defined_anew(payer: &mut Payer) -> Arc<AtomicUsize> {
    let mut other = Counting::new("pay", EffectClass::AtMostOnce);
    other.redefine();
    let ran = other.ran.clone();
    payer.work.tools = vec![Arc::new(other) as Arc<dyn Tool>];
    payer.work.gate = Arc::new(|_, _| Permission::Allowed);
    ran
}

#[test]
fn what_was_denied_stays_denied_though_tool_and_rule_changed_since() {
    let (house, mut payer) = (House::new(), payer(one()));
    let thread = house.asked(&payer);
    house.decide(&thread, "p1", Choice::Deny(None), &payer).unwrap();
    let ran = defined_anew(&mut payer);
    let ended = house.go_on(&thread, &payer);
    assert_eq!((ended.status.status().unwrap(), ran.load(Ordering::SeqCst)), (Status::Completed, 0));
    assert!(house.results(&thread)[0].1.contains("denied by ann"), "{:?}", house.results(&thread));
}

#[test]
fn what_was_allowed_is_asked_again_though_the_rule_of_its_changed_tool_is_gone() {
    let (house, mut payer) = (House::new(), payer(one()));
    let thread = house.asked(&payer);
    house.decide(&thread, "p1", Choice::Approve(None), &payer).unwrap();
    let ran = defined_anew(&mut payer);
    let ended = house.go_on(&thread, &payer);
    assert_eq!(
        (ended.status.status().unwrap(), ended.asks.len(), ran.load(Ordering::SeqCst)),
        (Status::Suspended, 1, 0)
    );
    assert!(ended.asks[0].redefined && ended.asks[0].why.as_deref() == Some("it is money"), "{:?}", ended.asks);
}

/// Whoever had denied it was not heard, because a rule denied it by then.
#[test]
fn the_model_is_told_why_somebody_denied_a_call_that_a_rule_denies_too() {
    let (house, mut payer) = (House::new(), payer(one()));
    let thread = house.asked(&payer);
    house.decide(&thread, "p1", Choice::Deny(Some("too much".to_owned())), &payer).unwrap();
    payer.work.gate = Arc::new(|_, _| Permission::Denied("a rule".to_owned()));
    house.go_on(&thread, &payer);
    assert!(house.results(&thread)[0].1.contains("too much"), "{:?}", house.results(&thread));
}

/// It was recorded as not allowed, though it may have been made.
#[test]
fn what_became_of_a_dispatched_call_does_not_depend_on_a_later_rule() {
    let (house, mut payer) = (House::new(), payer(one()));
    payer.work.gate = Arc::new(|_, _| Permission::Allowed);
    let mut pay = Counting::new("pay", EffectClass::AtMostOnce);
    pay.meanwhile = Arc::new(|_| die());
    payer.work.tools = vec![Arc::new(pay)];
    let thread = house.thread();
    let run = || house.send(&thread, Input::text("pay"), &payer.work);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
    let later = house.another();
    payer.work.gate = Arc::new(|_, _| Permission::Denied("a rule".to_owned()));
    let ended = later.go_on(&thread, &payer);
    assert_eq!(
        (ended.status.status().unwrap(), ended.code.as_deref().unwrap()),
        (Status::Suspended, "outcome_unknown")
    );
    assert_eq!(ended.suspended.unwrap().calls, [call("p1")]);
    // Who says that it was not made does not have it made against the rule.
    later.decide(&thread, "p1", Choice::NotDone, &payer).unwrap();
    assert_eq!(later.go_on(&thread, &payer).status.status().unwrap(), Status::Completed);
    assert!(later.results(&thread)[0].1.contains("not allowed: a rule"), "{:?}", later.results(&thread));
}

/// An answer that somebody gave in a tool's place became a call of the tool when the rule was changed before the thread went on.
#[test]
fn what_a_decision_does_is_what_was_asked_whatever_a_rule_says_later() {
    let modes = [
        (ResumeMode::UseDecisionAsToolResult, 0),
        (ResumeMode::PassDecisionToTool, 1),
        (ResumeMode::ReplayToolCall, 1),
    ];
    let paid_after = |asked: ResumeMode, later: ResumeMode, is_decided_before: bool| {
        let (house, mut payer) = (House::new(), payer(one()));
        payer.work.gate = asks(Asking { mode: asked, ..Asking::default() });
        let thread = house.asked(&payer);
        assert_eq!(house.loaded(&thread).manifest.asks[0].resume_mode, asked);
        let value = (asked != ResumeMode::ReplayToolCall).then(|| json!({"amount": 4}));
        let later = asks(Asking { mode: later, ..Asking::default() });
        if !is_decided_before {
            payer.work.gate = later.clone();
        }
        let choice = Choice::Approve(value);
        let decided = house.engine.decide(&thread, &call("p1"), choice, "ann", &payer.work).unwrap();
        assert_eq!(decided.mode, asked);
        payer.work.gate = later;
        assert_eq!(house.go_on(&thread, &payer).status, Status::Completed);
        let seen: Vec<_> = payer.seen.lock().unwrap().iter().map(|call| call.arguments["amount"].clone()).collect();
        let amount = if asked == ResumeMode::PassDecisionToTool { 4 } else { 1 };
        assert!(seen.iter().all(|made| *made == amount), "{seen:?}");
        seen.len()
    };
    for (asked, made) in modes {
        for (later, _) in modes {
            for is_decided_before in [true, false] {
                assert_eq!(paid_after(asked, later, is_decided_before), made, "{asked:?} {later:?}");
            }
        }
    }
}

#[test]
fn what_was_said_counts_when_nobody_would_be_asked_any_more() {
    let edited = json!({"to": "ben", "amount": 9});
    for (mode, choice, amounts) in [
        (ResumeMode::ReplayToolCall, Choice::Deny(Some("no".to_owned())), vec![]),
        (ResumeMode::ReplayToolCall, Choice::Edit(edited), vec![json!(9)]),
        (ResumeMode::UseDecisionAsToolResult, Choice::Approve(Some(json!("42"))), vec![]),
        (ResumeMode::PassDecisionToTool, Choice::Approve(Some(json!({"amount": 4}))), vec![json!(4)]),
        (ResumeMode::ReplayToolCall, Choice::Approve(None), vec![json!(1)]),
    ] {
        let (house, mut payer) = (House::new(), payer(one()));
        payer.work.gate = asks(Asking { mode, ..Asking::default() });
        let thread = house.asked(&payer);
        assert_eq!(house.decide(&thread, "p1", choice.clone(), &payer).unwrap(), Recorded::Now);
        payer.work.gate = Arc::new(|_, _| Permission::Allowed);
        assert_eq!(house.go_on(&thread, &payer).status, Status::Completed);
        let seen: Vec<_> = payer.seen.lock().unwrap().iter().map(|call| call.arguments["amount"].clone()).collect();
        assert_eq!(seen, amounts, "{choice:?}");
    }
}
