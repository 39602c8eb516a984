//! Trees of accounts: in any order of events money is conserved, and the signed logs alone give the same result.

use std::collections::BTreeMap;

use proptest::prelude::*;
use selvedge_engine::ledger::Book;
use selvedge_engine::ledger::audit::{self, Audit, Found, Unavailable};
use selvedge_model::account::replay::{AccountFlaw, DeletedPostings};
use selvedge_model::account::{Account, AccountId, AccountStatus, Posting, ReservationState};
use selvedge_model::id::ReservationId;
use selvedge_model::{AgentId, Batch, Changeset, Expect, Ids, Money, NewThread, Part, Reason, ThreadId};
use selvedge_store::conformance::support::SeededIds;
use selvedge_store::{Commit, Error, Ledger, Logs, Result};

use crate::support::Harness;

fn nanos(nanos: i64) -> Money {
    Money::from_nanos(nanos).unwrap()
}

/// What may happen to one account of a tree.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// It spawns a child with this much.
    Spawn(i64),
    /// It makes a call that was reserved at this much and costs that much.
    Call(i64, i64),
    /// It makes a call, and its process dies.
    Lost(i64),
    /// The cost of its last lost call is corrected to this much.
    Learn(i64),
    /// Its chain ends.
    End,
    /// Its chain is resumed.
    GoOn,
    /// It is raised to this much.
    Raise(i64),
}

fn step() -> impl Strategy<Value = Step> {
    let most = 1i64..60;
    prop_oneof![
        3 => most.clone().prop_map(Step::Spawn),
        5 => (most.clone(), 0i64..60).prop_map(|(bound, cost)| Step::Call(bound, cost.min(bound))),
        1 => most.clone().prop_map(Step::Lost),
        1 => (0i64..20).prop_map(Step::Learn),
        4 => Just(Step::End),
        2 => Just(Step::GoOn),
        1 => (1i64..200).prop_map(Step::Raise),
    ]
}

struct Forest {
    harness: Harness,
    ids: SeededIds,
    threads: Vec<ThreadId>,
    /// What was really spent by each.
    spent: BTreeMap<AccountId, i64>,
    calls: u64,
}

impl Forest {
    fn new(max: Option<i64>) -> Self {
        let harness = Harness::new();
        let ids = SeededIds::new(77);
        let root = harness.thread();
        let mut forest = Self { harness, ids, threads: vec![root.clone()], spent: BTreeMap::new(), calls: 0 };
        let open = Posting::Open { account: root.clone(), parent: None, max: max.map(nanos) };
        forest.post(&root, vec![open]).unwrap();
        forest
    }

    fn post(&mut self, thread: &ThreadId, postings: Vec<Posting>) -> Result<()> {
        let part = Part::new(thread.clone(), Expect::Any, Changeset::empty(Reason::Reserved));
        self.harness.store.commit(Batch::of(Part { postings, ..part })).map(|_| ())
    }

    fn plan(&self, work: impl FnOnce(&mut Book<'_>) -> Result<()>) -> Result<Vec<Posting>> {
        let mut book = Book::over(&*self.harness.store, &self.ids);
        work(&mut book)?;
        Ok(book.into_postings())
    }

    fn account(&self, id: &AccountId) -> Account {
        self.harness.store.account(id).unwrap().unwrap()
    }

    fn take(&mut self, index: usize, step: Step) -> Result<()> {
        let thread = self.threads[index % self.threads.len()].clone();
        match step {
            Step::Spawn(amount) => {
                let name = ThreadId::generate("child", &self.ids.hex12());
                let is_unlimited = self.account(&thread).max.is_none() && amount % 2 == 0;
                let max = (!is_unlimited).then(|| nanos(amount));
                let postings =
                    self.plan(|book| book.ensure(&thread, None).and_then(|()| book.spawn(&thread, &name, max)))?;
                let new =
                    NewThread { parent_id: Some(thread.clone()), ..NewThread::of(AgentId::new("scribe").unwrap()) };
                let born = Part::new(name.clone(), Expect::Absent, Changeset::creating(new));
                let part = Part::new(thread, Expect::Any, Changeset::empty(Reason::Reserved));
                let parts = vec![Part { postings, ..part }, born.clone()];
                self.harness.store.commit(Batch { parts, ..Batch::of(born) })?;
                self.threads.push(name);
                Ok(())
            }
            Step::Call(bound, cost) => {
                let name = self.reserve(&thread, bound)?;
                self.settle(&thread, &name, cost, false)
            }
            Step::Lost(bound) => {
                let name = self.reserve(&thread, bound)?;
                self.settle(&thread, &name, bound, true)
            }
            Step::Learn(cost) => {
                let held = self.harness.store.reservations(&thread)?;
                let Some(lost) = held.into_iter().find(|held| held.state == ReservationState::Unknown) else {
                    return Ok(());
                };
                let account = thread.clone();
                let reservation = lost.id;
                let evidence = "the provider's page".to_owned();
                let postings = self.plan(|book| book.correct(&account, reservation, nanos(cost), evidence))?;
                self.post(&thread, postings)?;
                *self.spent.entry(thread).or_default() -= lost.amount.nanos() - cost;
                Ok(())
            }
            Step::End => {
                let postings = self.plan(|book| book.close(&thread))?;
                self.post(&thread, postings)
            }
            Step::GoOn => {
                let postings = self.plan(|book| book.ensure(&thread, None))?;
                self.post(&thread, postings)
            }
            Step::Raise(max) => {
                if self.account(&thread).status == AccountStatus::Closed {
                    return Ok(());
                }
                let postings = self.plan(|book| book.raise(&thread, nanos(max)))?;
                self.post(&thread, postings)
            }
        }
    }

    fn reserve(&mut self, thread: &ThreadId, bound: i64) -> Result<ReservationId> {
        self.calls += 1;
        let reservation = ReservationId::new(format!("call-{}", self.calls)).unwrap();
        let account = thread.clone();
        let amount = nanos(bound);
        let reserve =
            Posting::Reserve { account: account.clone(), reservation: reservation.clone(), amount, child: None };
        self.post(thread, vec![reserve, Posting::Issue { account, reservation: reservation.clone() }])?;
        Ok(reservation)
    }

    fn settle(&mut self, thread: &ThreadId, reservation: &ReservationId, cost: i64, unknown: bool) -> Result<()> {
        let account = thread.clone();
        let reservation = reservation.clone();
        let amount = nanos(cost);
        self.post(thread, vec![Posting::Settle { account, reservation, amount, unknown }])?;
        *self.spent.entry(thread.clone()).or_default() += cost;
        Ok(())
    }

    /// The spending of the whole tree is within its limit, each account has what was spent, and parents and children agree.
    fn check(&self) -> Result<(), TestCaseError> {
        let root = self.account(&self.threads[0]);
        let total: i64 = self.spent.values().sum();
        prop_assert!(root.max.is_none_or(|max| root.used() <= max), "{root:?}");
        if root.max.is_some() {
            prop_assert!(total <= root.used().nanos(), "{total} were spent, and the root has {:?}", root.used());
        }
        for thread in &self.threads {
            let account = self.account(thread);
            prop_assert_eq!(account.settled.nanos(), self.spent.get(thread).copied().unwrap_or(0));
            let children =
                self.threads.iter().map(|id| self.account(id)).filter(|child| child.parent.as_ref() == Some(thread));
            let closed = children.filter(|child| child.status == AccountStatus::Closed);
            let charged: i64 = closed.map(|child| child.spent().nanos()).sum();
            prop_assert_eq!(account.settled_children.nanos(), charged);
        }
        Ok(())
    }

    fn audit(&self) -> Audit {
        let tree = audit::tree(&*self.harness.store, &self.threads[0]).unwrap();
        assert_eq!(tree.accounts.len(), self.threads.len());
        audit::audit(&*self.harness.store, &self.harness.trust, &tree).unwrap()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_trees_conserve_money_and_their_logs_alone_give_the_same_result(
        max in prop::option::weighted(0.8, 20i64..300),
        steps in prop::collection::vec((0usize..8, step()), 0..40),
    ) {
        let mut forest = Forest::new(max);
        for (index, step) in steps {
            match forest.take(index, step) {
                Ok(()) | Err(Error::Posting(_)) => {}
                Err(error) => return Err(TestCaseError::fail(format!("{step:?}: {error}"))),
            }
            forest.check()?;
        }
        // Everything ends, leaves last: a parent that ended before waits for them.
        for index in 0..forest.threads.len() {
            forest.take(index, Step::End).unwrap();
        }
        forest.check()?;
        for thread in &forest.threads {
            let account = forest.account(thread);
            prop_assert_eq!((account.status, account.reserved, account.open), (AccountStatus::Closed, Money::ZERO, 0));
        }
        let audit = forest.audit();
        prop_assert_eq!(audit.found, vec![]);
    }
}

/// A root with two children, one of which is done.
fn small() -> Forest {
    let mut forest = Forest::new(Some(100));
    for (index, step) in [
        (0, Step::Spawn(40)),
        (0, Step::Spawn(30)),
        (1, Step::Call(30, 12)),
        (2, Step::Lost(9)),
        (0, Step::Call(10, 3)),
        (1, Step::End),
    ] {
        forest.take(index, step).unwrap();
    }
    forest
}

#[test]
fn an_audit_reads_every_log_of_the_tree_and_finds_nothing() {
    let forest = small();
    let audit = forest.audit();
    assert_eq!((audit.logs, audit.found.as_slice()), (3, [].as_slice()));
    let root = &audit.accounts[&forest.threads[0]];
    assert_eq!((root.peak, root.account.spent(), root.account.reserved), (nanos(80), nanos(15), nanos(30)));
    assert_eq!(audit.accounts[&forest.threads[2]].unknown, nanos(9));
}

#[test]
fn postings_of_a_deleted_log_are_gone_but_no_breach_and_excuse_nothing_else() {
    let mut forest = small();
    let [root, done, open] = [0, 1, 2].map(|index| forest.threads[index].clone());
    forest.harness.store.delete(&done).unwrap();
    let audit = forest.audit();
    assert_eq!(audit.found, []);
    let of = |account: &ThreadId, from, to| Unavailable::Deleted {
        thread: done.clone(),
        postings: Some(DeletedPostings { account: account.clone(), from, to }),
    };
    let last = forest.account(&root).version;
    // The child had closed its reservation on the root's account from its own log, and nothing came after that.
    let mut gone = vec![of(&root, last, last), of(&done, 2, forest.account(&done).version)];
    gone.sort_by_key(|gone| gone.to_string());
    let mut said = audit.gone.clone();
    said.sort_by_key(|gone| gone.to_string());
    assert_eq!(said, gone);
    assert!(!audit.accounts[&root].is_whole && audit.accounts[&open].is_whole);
    // A database that has more than logs and tombstones, or differs from what is completely known, is still found.
    let tree = audit::tree(&*forest.harness.store, &root).unwrap();
    let found = |change: &dyn Fn(&mut Account), wanted: &ThreadId| {
        let mut tree = tree.clone();
        let branch = tree.accounts.iter_mut().find(|branch| branch.account.id == *wanted).unwrap();
        change(&mut branch.account);
        audit::audit(&*forest.harness.store, &forest.harness.trust, &tree).unwrap().found
    };
    for thread in [&root, &done] {
        assert!(matches!(found(&|account| account.version += 1, thread)[..], [Found::Database { .. }]), "{thread}");
    }
    assert!(matches!(found(&|account| account.settled = nanos(1), &open)[..], [Found::Database { .. }]));
    // Later postings follow from what can't be computed any more, and are still checked.
    forest.take(0, Step::Call(5, 5)).unwrap();
    assert_eq!(forest.audit().found, []);
}

#[test]
fn an_audit_finds_a_database_that_differs() {
    let forest = small();
    let tree = audit::tree(&*forest.harness.store, &forest.threads[0]).unwrap();
    let found = |change: &dyn Fn(&mut audit::Branch)| {
        let mut tree = tree.clone();
        change(&mut tree.accounts[2]);
        audit::audit(&*forest.harness.store, &forest.harness.trust, &tree).unwrap().found
    };
    assert_eq!(found(&|_| {}), []);
    for change in [
        &(|branch: &mut audit::Branch| branch.account.settled = nanos(1)) as &dyn Fn(&mut audit::Branch),
        &|branch| branch.account.max = None,
        &|branch| branch.account.version += 1,
        &|branch| branch.account.status = AccountStatus::Closed,
        &|branch| branch.reservations.clear(),
    ] {
        assert!(matches!(found(change)[..], [Found::Database { .. }]), "{:?}", found(change));
    }
}

#[test]
fn an_audit_reports_what_differs() {
    let forest = small();
    let [root, done, open] = [0, 1, 2].map(|index| forest.threads[index].clone());
    let tree = audit::tree(&*forest.harness.store, &root).unwrap();
    let found = |wanted: &ThreadId, change: &dyn Fn(&mut audit::Branch)| {
        let mut tree = tree.clone();
        change(tree.accounts.iter_mut().find(|branch| branch.account.id == *wanted).unwrap());
        let found = audit::audit(&*forest.harness.store, &forest.harness.trust, &tree).unwrap().found;
        found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let parent = found(&done, &|branch| branch.account.parent = None);
    assert!(parent.contains(&format!("comes from no other account, and the logs that its money comes from `{root}`")));
    let status = found(&done, &|branch| branch.account.status = AccountStatus::Active);
    assert!(status.contains("says that it is active, and the logs that it is closed"), "{status}");
    let lacks = found(&open, &|branch| branch.reservations.clear());
    assert!(lacks.contains("the database lacks reservation `call-2`"), "{lacks}");
    let other = found(&open, &|branch| branch.reservations[0].state = ReservationState::Issued);
    assert!(other.contains("`call-2` is 0.000000009 dollars, issued, and the logs"), "{other}");
}

#[test]
fn an_audit_finds_a_child_without_its_parent_in_the_database_from_either_side() {
    let forest = small();
    let [root, done] = [0, 1].map(|index| forest.threads[index].clone());
    *forest.harness.store.orphan.lock().unwrap() = Some(done.clone());
    for thread in [&root, &done] {
        let tree = audit::tree(&*forest.harness.store, thread).unwrap();
        let found = audit::audit(&*forest.harness.store, &forest.harness.trust, &tree).unwrap().found;
        assert!(
            matches!(&found[..], [Found::Database { account, why }] if *account == done && why.contains("comes from")),
            "{found:?}"
        );
    }
}

#[test]
fn a_correction_after_the_end_is_returned_up_the_whole_tree() {
    let mut forest = Forest::new(Some(100));
    for (index, step) in [
        (0, Step::Spawn(60)),
        (1, Step::Spawn(50)),
        (2, Step::Lost(40)),
        (2, Step::Call(9, 3)),
        (2, Step::End),
        (1, Step::End),
        (0, Step::End),
    ] {
        forest.take(index, step).unwrap();
    }
    let [root, middle, leaf] = [0, 1, 2].map(|index| forest.threads[index].clone());
    let spent = |forest: &Forest| [&root, &middle, &leaf].map(|id| forest.account(id).spent().nanos());
    assert_eq!((forest.account(&root).status, spent(&forest)), (AccountStatus::Closed, [43, 43, 43]));
    let reservation = ReservationId::new("call-1").unwrap();
    let alone = Posting::Correct { account: leaf.clone(), reservation, amount: nanos(5), evidence: "seen".to_owned() };
    assert!(matches!(forest.post(&leaf, vec![alone]), Err(Error::AccountBusy(_))), "its parent paid for it");
    forest.take(2, Step::Learn(5)).unwrap();
    assert_eq!((forest.account(&root).status, spent(&forest)), (AccountStatus::Closed, [8, 8, 8]));
    assert_eq!((forest.account(&root).reserved, forest.account(&middle).reserved), (Money::ZERO, Money::ZERO));
    assert_eq!(forest.audit().found, []);
}

/// A tree that was posted to while its logs were read was reported as damaged: more postings in the logs than in the database.
#[test]
fn a_tree_that_is_posted_to_while_it_is_audited_is_sound() {
    let mut forest = small();
    let tree = audit::tree(&*forest.harness.store, &forest.threads[0]).unwrap();
    for (index, step) in [
        (0, Step::Call(4, 4)),
        (2, Step::Spawn(10)),
        (3, Step::Call(5, 2)),
        (0, Step::Spawn(5)),
        (3, Step::End),
        (2, Step::End),
        (1, Step::GoOn),
    ] {
        forest.take(index, step).unwrap();
        let audit = audit::audit(&*forest.harness.store, &forest.harness.trust, &tree).unwrap();
        assert_eq!(audit.found, [], "after {step:?}");
        assert_eq!(audit.accounts.len(), tree.accounts.len(), "only the accounts of that moment are reported");
    }
    assert_eq!(forest.audit().found, []);
}

#[test]
fn an_audit_finds_a_posting_in_a_log_outside_the_tree() {
    let mut forest = small();
    let root = forest.threads[0].clone();
    let stranger = forest.harness.thread();
    let name = ReservationId::new("elsewhere").unwrap();
    let reserve = Posting::Reserve { account: root.clone(), reservation: name, amount: nanos(1), child: None };
    forest.post(&stranger, vec![reserve]).unwrap();
    forest.take(0, Step::Call(2, 1)).unwrap();
    let audit = forest.audit();
    assert_eq!((audit.logs, audit.found.as_slice()), (4, [].as_slice()), "the missing posting was found");
}

#[test]
fn an_overcharge_is_no_forgery_and_the_audit_reports_that_the_limit_was_exceeded() {
    let mut forest = Forest::new(Some(100));
    let root = forest.threads[0].clone();
    let name = forest.reserve(&root, 90).unwrap();
    forest.settle(&root, &name, 130, false).unwrap();
    let audit = forest.audit();
    let expected = AccountFlaw::Crossed {
        account: root.clone(),
        version: 4,
        place: (root, 7),
        used: nanos(130),
        ceiling: nanos(100),
    };
    assert_eq!(audit.found, [Found::Records(expected)]);
    assert!(!audit.found[0].is_of_integrity());
}

#[test]
fn each_log_is_read_only_once_and_in_any_order() {
    let forest = small();
    let head = forest.harness.store.head(&forest.threads[0]).unwrap();
    let one = forest.audit();
    let two = forest.audit();
    assert_eq!(one.accounts, two.accounts);
    assert_eq!(forest.harness.store.head(&forest.threads[0]).unwrap(), head, "an audit writes nothing");
}

#[test]
fn postings_that_are_outdated_by_the_end_of_another_thread_are_refused_and_recomputed() {
    let mut forest = Forest::new(Some(100));
    for (index, step) in [(0, Step::Spawn(40)), (1, Step::Spawn(20)), (2, Step::Call(9, 5))] {
        forest.take(index, step).unwrap();
    }
    let [root, middle, leaf] = [0, 1, 2].map(|index| forest.threads[index].clone());
    let late = forest.plan(|book| book.close(&leaf)).unwrap();
    forest.take(1, Step::End).unwrap();
    assert_eq!(forest.account(&middle).status, AccountStatus::Closing);
    // It would close the middle account, too, but not what the root holds for that one.
    assert!(matches!(forest.post(&leaf, late), Err(Error::AccountBusy(account)) if account == root));
    forest.take(2, Step::End).unwrap();
    assert_eq!(forest.account(&middle).status, AccountStatus::Closed);
    assert_eq!((forest.account(&root).reserved, forest.account(&root).settled_children), (Money::ZERO, nanos(5)));

    // The other way round: a parent that expected to wait.
    let mut forest = Forest::new(Some(100));
    for (index, step) in [(0, Step::Spawn(40)), (1, Step::Spawn(20)), (2, Step::Call(9, 5))] {
        forest.take(index, step).unwrap();
    }
    let [root, middle] = [0, 1].map(|index| forest.threads[index].clone());
    let late = forest.plan(|book| book.close(&middle)).unwrap();
    forest.take(2, Step::End).unwrap();
    assert!(matches!(forest.post(&middle, late), Err(Error::AccountBusy(account)) if account == root));
    forest.take(1, Step::End).unwrap();
    assert_eq!((forest.account(&root).reserved, forest.account(&root).settled_children), (Money::ZERO, nanos(5)));
}
