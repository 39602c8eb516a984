//! Words on a call that are left for whoever holds its thread.

use super::*;

#[test]
fn a_note_that_was_made_up_is_consumed_and_changes_nothing() {
    let (house, payer) = (House::new(), payer(one()));
    let thread = house.asked(&payer);
    let forged = Decision {
        call_id: call("p1"),
        action: "approve".to_owned(),
        who: "mallory".to_owned(),
        action_hash: Some(Digest([9; 32])),
        reason: None,
        result: None,
        resume_mode: ResumeMode::default(),
    };
    for (name, body) in [("decide-x", json!({"decision": forged})), ("decide-y", json!("nonsense"))] {
        let note = Note { thread: thread.clone(), key: NoteKey::new(name).unwrap(), kind: "decide".to_owned(), body };
        house.store.post(note).unwrap();
    }
    let ended = house.go_on(&thread, &payer);
    assert_eq!((ended.status, payer.paid.load(Ordering::SeqCst)), (Status::Suspended, 0));
    assert!(house.store.pending(&thread).unwrap().is_empty());
}

#[test]
fn what_another_process_allows_while_the_thread_is_busy_is_heard_by_the_same_run() {
    let (house, mut payer) = (House::new(), payer(two()));
    let other = house.another();
    let thread = house.thread();
    let (at, work) = (thread.clone(), payer.work.clone());
    payer.while_looking(move |_| {
        for id in ["p1", "p2", "p1"] {
            let decided = other.engine.decide(&at, &call(id), Choice::Approve(None), "bob", &work).unwrap();
            assert_eq!(decided.recorded, Recorded::Left);
        }
    });
    let ended = house.send(&thread, Input::text("pay"), &payer.work).0.unwrap();
    assert_eq!((ended.status, payer.paid.load(Ordering::SeqCst)), (Status::Completed, 2));
    assert_eq!(house.loaded(&thread).runs.len(), 1);
    assert!(house.store.pending(&thread).unwrap().is_empty());
}

#[test]
fn what_is_allowed_in_the_last_moment_starts_a_run_of_whoever_holds_the_thread() {
    let (house, payer) = (House::new(), payer(one()));
    let other = house.another();
    let thread = house.thread();
    let mut is_told = false;
    let mut tell = |told: selvedge_engine::Told<'_>| {
        if let selvedge_engine::Told::Committed { reason: selvedge_model::Reason::RunFinished, .. } = told
            && !std::mem::replace(&mut is_told, true)
        {
            // It is said to wait, and its process still has it.
            let decided = other.engine.decide(&thread, &call("p1"), Choice::Approve(None), "bob", &payer.work).unwrap();
            assert_eq!(decided.recorded, Recorded::Left);
        }
    };
    house.engine.send(&thread, Input::text("pay"), &payer.work, &Cancel::new(), &mut tell).unwrap();
    assert_eq!(house.store.get(&thread).unwrap().manifest.status, Status::Completed);
    assert_eq!(payer.paid.load(Ordering::SeqCst), 1);
}

/// A cancel that came while somebody decided about the thread stayed a note, and the next run consumed it.
#[test]
fn whoever_has_a_thread_for_a_moment_does_what_others_asked_of_it_meanwhile() {
    let (house, payer) = (House::new(), payer(two()));
    let thread = house.asked(&payer);
    let note = |kind: &str| Note {
        thread: thread.clone(),
        key: NoteKey::new(format!("{kind}-1")).unwrap(),
        kind: kind.to_owned(),
        body: json!({}),
    };
    house.store.post(note("cancel")).unwrap();
    house.decide(&thread, "p1", Choice::Deny(None), &payer).unwrap();
    assert_eq!(house.loaded(&thread).manifest.status, Status::Cancelled);
    assert!(house.store.pending(&thread).unwrap().is_empty());
}

/// It was acknowledged, and thrown away because the run came to it too late.
#[test]
fn a_word_that_was_left_in_time_counts_whenever_it_is_heard() {
    let (house, mut payer) = (House::new(), payer(two()));
    payer.work.gate = asks(Asking { expires_after: Some(Duration::from_secs(60)), ..Asking::default() });
    let other = house.another();
    let thread = house.thread();
    let (at, work, clock) = (thread.clone(), payer.work.clone(), house.clock.clone());
    payer.while_looking(move |_| {
        let decided = other.engine.decide(&at, &call("p1"), Choice::Approve(None), "bob", &work).unwrap();
        assert_eq!(decided.recorded, Recorded::Left);
        clock.set(Timestamp::from_micros(clock.now().as_micros() + 61_000_000));
    });
    let ended = house.send(&thread, Input::text("pay"), &payer.work).0.unwrap();
    assert_eq!((ended.status, payer.paid.load(Ordering::SeqCst)), (Status::Completed, 1));
    assert_eq!(payer.seen.lock().unwrap()[0].id, call("p1"));
}

/// Whoever found the thread settled it without knowing its rules, and the word that had been left was consumed for nothing.
#[test]
fn a_word_that_was_left_with_a_process_that_died_counts_in_the_next_one() {
    let (house, mut payer) = (House::new(), payer(two()));
    let other = house.another();
    let thread = house.thread();
    let (at, work) = (thread.clone(), payer.work.clone());
    let whole = payer.work.tools.clone();
    payer.while_looking(move |_| {
        for (id, choice) in [("p1", Choice::Approve(None)), ("p2", Choice::Deny(None))] {
            let decided = other.engine.decide(&at, &call(id), choice, "bob", &work).unwrap();
            assert_eq!(decided.recorded, Recorded::Left);
        }
        die();
    });
    let run = || house.send(&thread, Input::text("pay"), &payer.work);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
    payer.work.tools = whole;
    let later = house.another();
    assert_eq!(later.engine.recover().unwrap(), std::slice::from_ref(&thread));
    // What was left is what was said first.
    assert_eq!(later.decide(&thread, "p1", Choice::Deny(None), &payer).unwrap_err().code(), "already_decided");
    let ended = later.go_on(&thread, &payer);
    assert_eq!((ended.status, payer.paid.load(Ordering::SeqCst)), (Status::Completed, 1));
    assert_eq!(payer.seen.lock().unwrap()[0].id, call("p1"));
    assert!(later.store.pending(&thread).unwrap().is_empty());
}

/// Both were told that their word was left, and the second one that the call would not be made.
#[test]
fn another_word_than_the_one_that_was_left_is_refused() {
    let (house, mut payer) = (House::new(), payer(two()));
    let other = house.another();
    let thread = house.thread();
    let (at, work) = (thread.clone(), payer.work.clone());
    payer.while_looking(move |_| {
        let say = |id: &str, choice| other.engine.decide(&at, &call(id), choice, "bob", &work);
        say("p1", Choice::Approve(None)).unwrap();
        say("p2", Choice::Deny(None)).unwrap();
        assert_eq!(say("p1", Choice::Deny(None)).unwrap_err().code(), "already_decided");
        assert_eq!(say("p2", Choice::Approve(None)).unwrap_err().code(), "already_decided");
        assert_eq!(say("p1", Choice::Edit(json!({"amount": 9}))).unwrap_err().code(), "already_decided");
        assert_eq!(say("p1", Choice::Approve(None)).unwrap().recorded, Recorded::Left);
        assert_eq!(other.store.pending(&at).unwrap().len(), 2);
    });
    house.send(&thread, Input::text("pay"), &payer.work).0.unwrap();
    let seen: Vec<_> = payer.seen.lock().unwrap().iter().map(|call| call.id.clone()).collect();
    assert_eq!(seen, [call("p1")]);
}

/// A house whose engine hears only what was left by somebody who holds the key.
fn sealed(house: House) -> House {
    sealed_by(house, 9, &[])
}

fn sealed_by(mut house: House, current: u64, former: &[u64]) -> House {
    let key = |seed| selvedge_log::Signer::generate(&SeededIds::new(seed)).seal_key();
    house.engine = house.engine.sealing(key(current)).hearing(former.iter().map(|seed| key(*seed)).collect());
    house
}

/// A decision that was left before a key took over was dropped as if somebody had forged it.
#[test]
fn what_was_left_under_a_key_counts_after_another_took_over_from_it() {
    for (former, paid) in [(&[9][..], 1), (&[], 0)] {
        let (house, payer) = (sealed(House::new()), payer(one()));
        let thread = house.asked(&payer);
        let held = house.store.acquire(&thread, selvedge_store::Acquire::default()).unwrap();
        assert_eq!(house.decide(&thread, "p1", Choice::Approve(None), &payer).unwrap(), Recorded::Left);
        house.store.abandon(&held).unwrap();
        let later = sealed_by(house.another(), 10, former);
        let mut dropped = Vec::new();
        let mut tell = |told: selvedge_engine::Told<'_>| {
            if let selvedge_engine::Told::Dropped { why } = told {
                dropped.push(why.to_owned());
            }
        };
        later.engine.resume(&thread, Input::nothing(), &payer.work, &Cancel::new(), &mut tell).unwrap();
        assert_eq!(payer.paid.load(Ordering::SeqCst), paid, "{dropped:?}");
        // Where it can't be checked any more, whoever said it is told which call it was about.
        assert_eq!(dropped.len(), 1 - paid, "{dropped:?}");
        assert!(dropped.iter().all(|why| why.contains("call `p1`") && why.contains("says it again")), "{dropped:?}");
    }
}

/// A row that somebody wrote into the database by hand was executed as an approval, and signed.
#[test]
fn what_nobody_who_holds_the_key_left_is_dropped_told_and_changes_nothing() {
    let (house, payer) = (sealed(House::new()), payer(one()));
    let (thread, other) = (house.asked(&payer), house.thread());
    let ask = house.loaded(&thread).manifest.asks.remove(0);
    let approve = json!({
        "call_id": "p1", "action": "approve", "who": "mallory", "action_hash": ask.action_hash,
    });
    // A mark that was made for something else.
    let held = house.store.acquire(&other, selvedge_store::Acquire::default()).unwrap();
    house
        .engine
        .leave_raise(&other, &selvedge_model::limits::Limits { turns: Some(99), ..Default::default() })
        .unwrap();
    let raise = house.store.pending(&other).unwrap().remove(0);
    house.store.abandon(&held).unwrap();
    let mark = raise.body["mark"].clone();
    assert!(mark.is_string(), "{raise:?}");
    for (kind, name, body) in [
        ("decide", "decide-1", json!({"decision": approve})),
        ("decide", "decide-2", json!({"decision": approve, "mark": mark})),
        ("decide", "decide-3", json!({"decision": approve, "mark": 7})),
        ("raise", raise.key.as_str(), raise.body.clone()),
    ] {
        let (thread, key) = (thread.clone(), NoteKey::new(name).unwrap());
        house.store.post(Note { thread, key, kind: kind.to_owned(), body }).unwrap();
    }
    let mut dropped = Vec::new();
    let mut tell = |told: selvedge_engine::Told<'_>| {
        if let selvedge_engine::Told::Dropped { why } = told {
            dropped.push(why.to_owned());
        }
    };
    let ended = house.engine.resume(&thread, Input::nothing(), &payer.work, &Cancel::new(), &mut tell).unwrap();
    assert_eq!((ended.status, payer.paid.load(Ordering::SeqCst)), (Status::Suspended, 0));
    assert_eq!((dropped.len(), house.store.pending(&thread).unwrap().len()), (4, 0), "{dropped:?}");
    let loaded = house.loaded(&thread);
    assert!(loaded.calls[&call("p1")].decisions.is_empty() && loaded.manifest.limits.is_none());
    assert_eq!(loaded.messages.iter().filter(|message| message.role == Role::User).count(), 1);
}

#[test]
fn what_somebody_who_holds_the_key_leaves_is_heard() {
    let (house, payer) = (sealed(House::new()), payer(one()));
    let other = sealed(house.another());
    let thread = house.thread();
    let mut is_told = false;
    let mut tell = |told: selvedge_engine::Told<'_>| match told {
        selvedge_engine::Told::Committed { reason: Reason::RunFinished, .. }
            if !std::mem::replace(&mut is_told, true) =>
        {
            let decided = other.decide(&thread, "p1", Choice::Approve(None), &payer).unwrap();
            assert_eq!(decided, Recorded::Left);
        }
        selvedge_engine::Told::Dropped { why } => panic!("{why}"),
        _ => {}
    };
    house.engine.send(&thread, Input::text("pay"), &payer.work, &Cancel::new(), &mut tell).unwrap();
    assert_eq!(payer.paid.load(Ordering::SeqCst), 1);
}
