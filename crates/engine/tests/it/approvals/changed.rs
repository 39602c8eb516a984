//! Tools and rules that change between an approval request, its decision and the call.

use super::*;

#[test]
fn a_tool_that_was_redefined_after_its_approval_needs_another_one() {
    let harness = Harness::new();
    let mut payer = payer(one());
    let thread = harness.asked(&payer);
    let asked = harness.loaded(&thread).manifest.asks[0].action_hash;
    harness.decide(&thread, "p1", Choice::Approve(None), &payer).unwrap();
    let mut other = CountingTool::new("pay", EffectClass::AtMostOnce);
    other.redefine();
    let ran = other.ran.clone();
    payer.work.tools = vec![Arc::new(other) as Arc<dyn Tool>];
    let mut ended = harness.go_on(&thread, &payer);
    assert_eq!((ended.status.status().unwrap(), ran.load(Ordering::SeqCst)), (Status::Suspended, 0));
    let again = ended.asks.remove(0);
    assert!(again.action_hash != asked && again.redefined, "the new request says why: {again:?}");
    // The request stays as it is, and still says that the tool was redefined.
    assert_eq!(harness.go_on(&thread, &payer).asks, [again]);
    harness.decide(&thread, "p1", Choice::Approve(None), &payer).unwrap();
    assert_eq!(
        (harness.go_on(&thread, &payer).status.status().unwrap(), ran.load(Ordering::SeqCst)),
        (Status::Completed, 1)
    );
    let told = harness.answer_of(&thread, &call("p1")).unwrap().to_string();
    assert!(told.contains("the tool was redefined after the approval"), "the model gets to know it, too: {told}");
}

/// After its rule was removed, a call was made that was not approved, even after a message or a denial.
#[test]
fn a_call_with_an_approval_request_is_not_made_without_a_decision_even_if_its_rule_is_gone() {
    let allowed = || Arc::new(|_: &selvedge_model::ToolSpec, _: &Value| Permission::Allowed);
    // There is no decision: the request is still pending.
    let harness = Harness::new();
    let mut payer = payer(two());
    let thread = harness.asked(&payer);
    payer.work.gate = allowed();
    let ended = harness.go_on(&thread, &payer);
    assert_eq!((ended.status.status().unwrap(), ended.asks.len()), (Status::Suspended, 2));
    // One of them is approved, and each is made by itself.
    payer.work.wait = Wait::Each;
    harness.decide(&thread, "p2", Choice::Approve(None), &payer).unwrap();
    let ended = harness.go_on(&thread, &payer);
    assert_eq!(
        (ended.status.status().unwrap(), ended.asks.len(), payer.paid.load(Ordering::SeqCst)),
        (Status::Suspended, 1, 1)
    );
    // A message comes instead.
    let ended = harness.send(&thread, Input::text("do not pay"), &payer.work).0.unwrap();
    assert_eq!((ended.status.status().unwrap(), payer.paid.load(Ordering::SeqCst)), (Status::Completed, 1));
    assert!(harness.results(&thread).iter().any(|(_, text)| text.contains("a new message came")));
}

/// Gives the payer another tool of the same name, and removes its rule; returns how often that tool ran.
fn redefined(payer: &mut Payer) -> Arc<AtomicUsize> {
    let mut other = CountingTool::new("pay", EffectClass::AtMostOnce);
    other.redefine();
    let ran = other.ran.clone();
    payer.work.tools = vec![Arc::new(other) as Arc<dyn Tool>];
    payer.work.gate = Arc::new(|_, _| Permission::Allowed);
    ran
}

#[test]
fn a_denied_call_stays_denied_even_if_tool_and_rule_changed_since() {
    let harness = Harness::new();
    let mut payer = payer(one());
    let thread = harness.asked(&payer);
    harness.decide(&thread, "p1", Choice::Deny(None), &payer).unwrap();
    let ran = redefined(&mut payer);
    let ended = harness.go_on(&thread, &payer);
    assert_eq!((ended.status.status().unwrap(), ran.load(Ordering::SeqCst)), (Status::Completed, 0));
    assert!(harness.results(&thread)[0].1.contains("denied by ann"), "{:?}", harness.results(&thread));
}

#[test]
fn an_approval_is_requested_again_even_if_the_rule_of_the_redefined_tool_is_gone() {
    let harness = Harness::new();
    let mut payer = payer(one());
    let thread = harness.asked(&payer);
    harness.decide(&thread, "p1", Choice::Approve(None), &payer).unwrap();
    let ran = redefined(&mut payer);
    let ended = harness.go_on(&thread, &payer);
    assert_eq!(
        (ended.status.status().unwrap(), ended.asks.len(), ran.load(Ordering::SeqCst)),
        (Status::Suspended, 1, 0)
    );
    assert!(ended.asks[0].redefined && ended.asks[0].why.as_deref() == Some("it is money"), "{:?}", ended.asks);
}

/// The reason of the denial was lost, because a rule denied the call by then.
#[test]
fn the_model_gets_the_reason_of_a_denial_even_if_a_rule_denies_the_call_too() {
    let harness = Harness::new();
    let mut payer = payer(one());
    let thread = harness.asked(&payer);
    harness.decide(&thread, "p1", Choice::Deny(Some("too much".to_owned())), &payer).unwrap();
    payer.work.gate = Arc::new(|_, _| Permission::Denied("a rule".to_owned()));
    harness.go_on(&thread, &payer);
    assert!(harness.results(&thread)[0].1.contains("too much"), "{:?}", harness.results(&thread));
}

/// It was recorded as not allowed, although it may have been executed.
#[test]
fn the_outcome_of_a_dispatched_call_does_not_depend_on_a_later_rule() {
    let harness = Harness::new();
    let mut payer = payer(one());
    payer.work.gate = Arc::new(|_, _| Permission::Allowed);
    let mut pay = CountingTool::new("pay", EffectClass::AtMostOnce);
    pay.meanwhile = Arc::new(|_| die());
    payer.work.tools = vec![Arc::new(pay)];
    let thread = harness.thread();
    let run = || harness.send(&thread, Input::text("pay"), &payer.work);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
    let later = harness.another();
    payer.work.gate = Arc::new(|_, _| Permission::Denied("a rule".to_owned()));
    let ended = later.go_on(&thread, &payer);
    assert_eq!(
        (ended.status.status().unwrap(), ended.code.as_deref().unwrap()),
        (Status::Suspended, "outcome_unknown")
    );
    assert_eq!(ended.suspended.unwrap().calls, [call("p1")]);
    // The decision that it was not executed does not override the rule.
    later.decide(&thread, "p1", Choice::NotDone, &payer).unwrap();
    assert_eq!(later.go_on(&thread, &payer).status.status().unwrap(), Status::Completed);
    assert!(later.results(&thread)[0].1.contains("not allowed: a rule"), "{:?}", later.results(&thread));
}

/// A decision that was to be the result became a call of the tool when the rule was changed before the thread resumed.
#[test]
fn the_resume_mode_of_a_decision_is_that_of_its_request_whatever_a_rule_says_later() {
    let modes = [
        (ResumeMode::UseDecisionAsToolResult, 0),
        (ResumeMode::PassDecisionToTool, 1),
        (ResumeMode::ReplayToolCall, 1),
    ];
    let paid_after = |asked: ResumeMode, later: ResumeMode, is_decided_before: bool| {
        let harness = Harness::new();
        let mut payer = payer(one());
        payer.work.gate = asks(NeededApproval { mode: asked, ..NeededApproval::default() });
        let thread = harness.asked(&payer);
        assert_eq!(harness.loaded(&thread).manifest.asks[0].resume_mode, asked);
        let value = (asked != ResumeMode::ReplayToolCall).then(|| json!({"amount": 4}));
        let later = asks(NeededApproval { mode: later, ..NeededApproval::default() });
        if !is_decided_before {
            payer.work.gate = later.clone();
        }
        let choice = Choice::Approve(value);
        let decided = harness.engine.decide(&thread, &call("p1"), choice, "ann", &payer.work).unwrap();
        assert_eq!(decided.mode, asked);
        payer.work.gate = later;
        assert_eq!(harness.go_on(&thread, &payer).status, Status::Completed);
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
fn a_decision_counts_even_if_no_approval_is_needed_any_more() {
    let edited = json!({"to": "ben", "amount": 9});
    for (mode, choice, amounts) in [
        (ResumeMode::ReplayToolCall, Choice::Deny(Some("no".to_owned())), vec![]),
        (ResumeMode::ReplayToolCall, Choice::Edit(edited), vec![json!(9)]),
        (ResumeMode::UseDecisionAsToolResult, Choice::Approve(Some(json!("42"))), vec![]),
        (ResumeMode::PassDecisionToTool, Choice::Approve(Some(json!({"amount": 4}))), vec![json!(4)]),
        (ResumeMode::ReplayToolCall, Choice::Approve(None), vec![json!(1)]),
    ] {
        let harness = Harness::new();
        let mut payer = payer(one());
        payer.work.gate = asks(NeededApproval { mode, ..NeededApproval::default() });
        let thread = harness.asked(&payer);
        assert_eq!(harness.decide(&thread, "p1", choice.clone(), &payer).unwrap(), Recorded::Now);
        payer.work.gate = Arc::new(|_, _| Permission::Allowed);
        assert_eq!(harness.go_on(&thread, &payer).status, Status::Completed);
        let seen: Vec<_> = payer.seen.lock().unwrap().iter().map(|call| call.arguments["amount"].clone()).collect();
        assert_eq!(seen, amounts, "{choice:?}");
    }
}
