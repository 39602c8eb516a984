//! Money, requests and chains, which must change together with the threads.

use selvedge_model::account::{AccountId, Posting};
use selvedge_model::event::{Fields, Handoff, Predecessor};
use selvedge_model::{
    Answered, Batch, Changeset, CommitKey, Event, Money, NewThread, Part, Reason, RequestKind, Status, ThreadId,
    Verdict,
};
use selvedge_store::conformance::support::{
    batch as of, birth, finishes, id, new_thread, part, part_at, request, says, starts,
};
use selvedge_store::{Commit, Inbox, Ledger, Logs, Registry};
use selvedge_store_local::LocalStore;

use super::appends::{long, one, two, two_threads};
use crate::LabResult;
use crate::check::{CheckResult, Kind, breach, or};
use crate::fact::{Fact, FactRecorder};
use crate::home::Home;

fn money(nanos: i64) -> LabResult<Money> {
    Ok(Money::from_nanos(nanos)?)
}

fn posts(thread: &ThreadId, postings: Vec<Posting>) -> Part {
    Part { postings, ..part(thread, Changeset::empty(Reason::Reserved)) }
}

/// The same part, with its verdict on the request.
fn answering(mut part: Part) -> Part {
    part.changeset.events.push(Event::RequestAnswered(Answered {
        request_id: id("wish"),
        kind: RequestKind::Rename,
        verdict: Verdict::Applied,
        why: None,
    }));
    part
}

fn account_of() -> AccountId {
    one()
}

/// An account with one reservation, and a request that was not consumed.
pub(super) fn account(home: &Home) -> LabResult {
    two_threads(home)?;
    let store = home.open()?;
    let account = account_of();
    let max = Some(money(100)?);
    let reserve =
        Posting::Reserve { account: account.clone(), reservation: id("call-0"), amount: money(30)?, child: None };
    let postings = vec![Posting::Open { account, parent: None, max }, reserve];
    FactRecorder::default().commit(&store, "opened", Batch::of(posts(&one(), postings)))?;
    store.post(request(&one(), "wish", "rename"))?;
    Ok(store.close()?)
}

/// A settlement that consumes a request and posts another, in a batch over two threads; then a reservation by the second thread.
pub(super) fn post(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    let store = recorder.attempt(|| home.open())?;
    let account = account_of();
    let issue = Posting::Issue { account: account.clone(), reservation: id("call-0") };
    let settle =
        Posting::Settle { account: account.clone(), reservation: id("call-0"), amount: money(25)?, unknown: false };
    let settled = Batch {
        consumed: vec![(one(), id("wish"))],
        posted: vec![request(&two(), "answer", "cancel")],
        ..of([answering(posts(&one(), vec![issue, settle])), part(&two(), says(&long("paid ")))])
    };
    recorder.commit(&store, "settled", settled)?;
    let reserve = Posting::Reserve { account, reservation: id("call-1"), amount: money(75)?, child: None };
    recorder.commit(&store, "reserved", Batch::of(posts(&two(), vec![reserve])))?;
    recorder.close(store)
}

/// The batch that settles, the request that it consumes, and the request that it posts: all or none.
pub(super) fn requests_agree(_: &Home, store: &LocalStore, _: &[Fact]) -> CheckResult {
    let key = |text: &str| CommitKey::new(text).map_err(or(Kind::Broken, "a key"));
    let has =
        |text: &str| Ok(store.outcome(&key(text)?).map_err(or(Kind::Broken, "a key can't be looked up"))?.is_some());
    let waits =
        |thread: &ThreadId| Ok(!store.pending(thread).map_err(or(Kind::Broken, "requests can't be read"))?.is_empty());
    let settled = has("settled")?;
    if waits(&one())? == settled || waits(&two())? != settled {
        return Err(breach(Kind::Blended, format!("settled: {settled}, but the requests contradict that")));
    }
    let account = store.account(&account_of()).map_err(or(Kind::Broken, "the account can't be read"))?;
    let spent = account.map(|account| (account.settled.nanos(), account.reserved.nanos()));
    let due = match (settled, has("reserved")?) {
        (true, true) => (25, 75),
        (true, false) => (25, 0),
        (false, _) => (0, 30),
    };
    match spent {
        Some(spent) if spent == due => Ok(()),
        other => Err(breach(Kind::Blended, format!("the account has {other:?}, but the commits require {due:?}"))),
    }
}

/// A run is started, and the thread is handed off: its end and its successor's creation are one batch.
pub(super) fn handoff(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    let store = recorder.attempt(|| home.open())?;
    let next = id::<ThreadId>("next-0123456789ab");
    recorder.commit(&store, "started", Batch::of(part(&one(), starts("run-1"))))?;
    recorder.commit_once(&store, "handed", || {
        let head = store.head(&one())?;
        let from = Predecessor { thread_id: one(), version: head.version, hash: head.hash };
        let new = NewThread { continuation_of: Some(from), chain_root_id: Some(one()), ..new_thread() };
        let to = Handoff {
            new_thread_id: next.clone(),
            reason: None,
            directive: None,
            trailing_turns: 0,
            details: Fields::new(),
        };
        let ended = Changeset { events: vec![Event::ThreadHandoff(to)], ..finishes("run-1", "natural") };
        Ok(of([part_at(&one(), head.version, ended), birth(&next, new)]))
    })?;
    recorder.commit(&store, "went-on", Batch::of(part(&next, says(&long("thanks ")))))?;
    recorder.close(store)
}

/// The old thread is continued if and only if the new one exists.
pub(super) fn chain_agrees(_: &Home, store: &LocalStore, _: &[Fact]) -> CheckResult {
    let status = store.get(&one()).map_err(or(Kind::Lost, "the old thread"))?.manifest.status;
    let next = store.get(&id("next-0123456789ab"));
    if (status == Status::Continued) != next.is_ok() {
        return Err(breach(Kind::Blended, format!("the old thread is {status:?}, the new one {next:?}")));
    }
    Ok(())
}
