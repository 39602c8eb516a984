//! Approvals: a call is pending, a person decides, the thread is resumed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use selvedge::{Choice, Input, Recorded, Status, SuspendReason, Tool, json};

use crate::support::{folder, scripted};

#[test]
fn a_call_waits_for_its_approval_and_is_made_once() {
    let folder = folder();
    let paid = Arc::new(AtomicUsize::new(0));
    let counted = paid.clone();
    let pay = Tool::function("pay", "Pays.", json!({"type": "object"}), move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        "paid"
    })
    .needs_approval("it moves money");
    let turns = json!([{"calls": [{"tool": "pay"}]}, {"say": "It is paid."}]);
    let selvedge = scripted(&folder, &turns).tool(pay).open().unwrap();
    let asked = selvedge.run("Pay the bill.").join().unwrap();
    assert_eq!(asked.status, Status::Suspended);
    assert_eq!(asked.suspended.unwrap().reason, SuspendReason::Approval);
    let ask = &asked.asks[0];
    assert!(ask.tool == "pay" && ask.why.as_deref() == Some("it moves money"), "{ask:?}");
    assert_eq!(paid.load(Ordering::SeqCst), 0);

    let thread = asked.thread_id;
    let decided = selvedge.decide(&thread, &ask.call_id, Choice::Approve(None), "ann").join().unwrap();
    assert_eq!(decided.recorded, Recorded::Now);
    assert!(decided.undecided.is_empty());
    let other = selvedge.decide(&thread, &ask.call_id, Choice::Deny(None), "bob").join().unwrap_err();
    assert_eq!(other.code(), "already_decided");
    let outcome = selvedge.resume(&thread, Input::nothing()).join().unwrap();
    assert_eq!(outcome.result.as_deref(), Some("It is paid."));
    assert_eq!(paid.load(Ordering::SeqCst), 1);
}
