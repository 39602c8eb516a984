//! Rebuilds accounts from the records in logs, and checks that each spending limit held.
//!
//! The records of one account are sorted by version, independently of any clock, and posted again by the same rules as the first time.
//! A version that is missing, that occurs twice, or that does not follow from the one before it is reported. The account is not replayed
//! beyond it, because nothing after it could be verified. Records of a deleted log are missing too; that is no flaw if the log's
//! tombstone lists them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Account, AccountId, AccountStatus, Posting, Record, Reservation, ReservationState, post};
use crate::id::{ReservationId, ThreadId};
use crate::money::Money;

/// One record, and its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocatedRecord {
    /// The thread whose log contains it.
    pub thread: ThreadId,
    /// Its line number.
    pub line: u64,
    /// The type of its event.
    pub event_type: &'static str,
    /// The record.
    pub record: Record,
}

/// An account as its records describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The account after the last record that could be posted.
    pub account: Account,
    /// Its open reservations, and those that were settled with unknown cost.
    pub reservations: BTreeMap<ReservationId, Reservation>,
    /// How many records were posted.
    pub postings: u64,
    /// The spending limit that was last set by opening or raising the account; a stop does not count.
    pub ceiling: Option<Money>,
    /// The highest sum of spent and reserved money after any posting.
    pub peak: Money,
    /// How much of the settled money is of unknown cost.
    pub unknown: Money,
    /// Whether all its records could be posted.
    pub is_whole: bool,
}

/// Postings of an account whose records were in a deleted log, as its tombstone lists them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeletedPostings {
    /// The account.
    pub account: AccountId,
    /// The first version.
    pub from: u64,
    /// The last version; all versions between are included.
    pub to: u64,
}

impl DeletedPostings {
    /// The postings of a log, from its records.
    pub fn of<'a>(records: impl IntoIterator<Item = &'a Record>) -> Vec<Self> {
        let mut versions: BTreeSet<(AccountId, u64)> = BTreeSet::new();
        for record in records {
            versions.insert((record.account.clone(), record.account_version));
        }
        let mut buried: Vec<Self> = Vec::new();
        for (account, version) in versions {
            match buried.last_mut() {
                Some(last) if last.account == account && last.to.checked_add(1) == Some(version) => last.to = version,
                _ => buried.push(Self { account, from: version, to: version }),
            }
        }
        buried
    }
}

/// The first gap among versions `from` to `to` of an account that the buried ones don't cover.
pub fn unburied(account: &AccountId, from: u64, to: u64, buried: &[DeletedPostings]) -> Option<(u64, u64)> {
    let mut ours: Vec<_> = buried.iter().filter(|one| one.account == *account).collect();
    ours.sort();
    let mut next = from;
    for one in ours {
        if one.from > next {
            break;
        }
        next = next.max(one.to.saturating_add(1));
    }
    let until = buried.iter().filter(|one| one.account == *account && one.from > next).map(|one| one.from - 1).min();
    (next <= to).then(|| (next, until.map_or(to, |until| until.min(to))))
}

/// A contradiction or a gap in the records, or a limit that was exceeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccountFlaw {
    /// No log contains these versions.
    Missing {
        /// The account.
        account: AccountId,
        /// The first version.
        from: u64,
        /// The last version.
        to: u64,
    },
    /// One version occurs twice.
    Double {
        /// The account.
        account: AccountId,
        /// The version.
        version: u64,
        /// Its locations, as threads and lines.
        places: Vec<(ThreadId, u64)>,
        /// Whether both records are the same.
        is_same: bool,
    },
    /// A record does not follow from the one before it.
    Misfit {
        /// The account.
        account: AccountId,
        /// The version.
        version: u64,
        /// Its location, as thread and line.
        place: (ThreadId, u64),
        /// The reason.
        why: String,
    },
    /// More was spent and reserved than the limit allowed.
    Crossed {
        /// The account.
        account: AccountId,
        /// The first version at which it was exceeded.
        version: u64,
        /// Its location, as thread and line.
        place: (ThreadId, u64),
        /// What was spent and reserved.
        used: Money,
        /// The limit.
        ceiling: Money,
    },
    /// A parent account and its child account disagree.
    Unpaired {
        /// The parent's account.
        parent: AccountId,
        /// The child's account; absent if it concerns all children.
        child: Option<AccountId>,
        /// What they disagree on.
        why: String,
    },
}

impl AccountFlaw {
    /// Whether records are missing, doubled or wrong. An exceeded limit does not count: the records of it may be right.
    pub fn is_of_the_records(&self) -> bool {
        !matches!(self, Self::Crossed { .. })
    }
}

impl fmt::Display for AccountFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { account, from, to } if from == to => {
                write!(f, "account `{account}`: posting {from} is in no log")
            }
            Self::Missing { account, from, to } => {
                write!(f, "account `{account}`: postings {from} to {to} are in no log")
            }
            Self::Double { account, version, places, is_same } => {
                let places: Vec<_> = places.iter().map(|(thread, line)| format!("`{thread}` line {line}")).collect();
                let contents = if *is_same { "the same content" } else { "different contents" };
                write!(f, "account `{account}`: posting {version} is in {}, with {contents}", places.join(" and "))
            }
            Self::Misfit { account, version, place: (thread, line), why } => {
                write!(f, "account `{account}`: posting {version} in `{thread}` line {line} does not follow: {why}")
            }
            Self::Crossed { account, version, used, ceiling, .. } => {
                write!(
                    f,
                    "account `{account}`: {used} dollars were used at posting {version}, above its limit of {ceiling}"
                )
            }
            Self::Unpaired { parent, child: Some(child), why } => {
                write!(f, "accounts `{parent}` and `{child}`: {why}")
            }
            Self::Unpaired { parent, child: None, why } => write!(f, "account `{parent}`: {why}"),
        }
    }
}

/// The result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Every account that a record names.
    pub accounts: BTreeMap<AccountId, History>,
    /// Everything that is wrong with them.
    pub flaws: Vec<AccountFlaw>,
    /// How many records could not be posted, because they come after a gap or after a record that is wrong.
    pub unposted: u64,
}

/// Posts records again, given in any order.
pub fn replay(seen: impl IntoIterator<Item = LocatedRecord>) -> Replayed {
    replay_without(seen, &[])
}

/// Posts records again, given in any order, where `buried` ones were in deleted logs: their absence is no flaw. An account is not
/// replayed beyond its first gap, but versions that occur twice are still reported.
pub fn replay_without(seen: impl IntoIterator<Item = LocatedRecord>, buried: &[DeletedPostings]) -> Replayed {
    let mut by_account: BTreeMap<AccountId, BTreeMap<u64, Vec<LocatedRecord>>> = BTreeMap::new();
    for one in seen {
        let versions = by_account.entry(one.record.account.clone()).or_default();
        versions.entry(one.record.account_version).or_default().push(one);
    }
    let mut replayed = Replayed::default();
    for (account, versions) in by_account {
        let versions_seen = versions.len() as u64;
        let (history, flaws) = replay_account(&account, versions, buried);
        replayed.unposted += versions_seen - history.as_ref().map_or(0, |history| history.postings);
        replayed.flaws.extend(flaws);
        replayed.accounts.extend(history.map(|history| (account, history)));
    }
    replayed.flaws.extend(unpaired(&replayed.accounts));
    replayed
}

fn replay_account(
    account: &AccountId,
    versions: BTreeMap<u64, Vec<LocatedRecord>>,
    buried: &[DeletedPostings],
) -> (Option<History>, Vec<AccountFlaw>) {
    let mut history: Option<History> = None;
    let mut flaws: Vec<AccountFlaw> = Vec::new();
    let mut next = 1;
    let mut is_followed = true;
    for (version, mut seen) in versions {
        if version > next {
            let missing = unburied(account, next, version - 1, buried);
            flaws.extend(missing.map(|(from, to)| AccountFlaw::Missing { account: account.clone(), from, to }));
            is_followed = false;
        }
        next = version + 1;
        let Some(one) = seen.pop() else { continue };
        if let Some(other) = seen.pop() {
            let is_same = (other.event_type, &other.record) == (one.event_type, &one.record);
            let places = vec![(other.thread, other.line), (one.thread.clone(), one.line)];
            flaws.push(AccountFlaw::Double { account: account.clone(), version, places, is_same });
            is_followed &= is_same;
        }
        if !is_followed {
            continue;
        }
        match take(history.as_ref(), &one) {
            Ok(after) => {
                flaws.extend(crossed(&after, history.as_ref(), (one.thread, one.line)));
                history = Some(after);
            }
            Err(why) => {
                let place = (one.thread, one.line);
                flaws.push(AccountFlaw::Misfit { account: account.clone(), version, place, why });
                is_followed = false;
            }
        }
    }
    let is_last = buried.iter().all(|one| one.account != *account || one.to < next);
    let is_whole = is_followed && is_last && flaws.iter().all(|flaw| !flaw.is_of_the_records());
    (history.map(|history| History { is_whole, ..history }), flaws)
}

/// The history after one more record, or the reason why the record does not follow.
fn take(before: Option<&History>, seen: &LocatedRecord) -> Result<History, String> {
    let LocatedRecord { event_type, record, .. } = seen;
    let posting = Posting::from_record(event_type, record).ok_or("it lacks a field that its type needs")?;
    let held = posting.reservation().and_then(|name| before?.reservations.get(name));
    let posted = post(before.map(|before| &before.account), held, &posting).map_err(|error| error.to_string())?;
    if posted.record != *record {
        return Err(difference(&posted.record, record));
    }
    let mut reservations = before.map(|before| before.reservations.clone()).unwrap_or_default();
    if let Some(name) = posting.reservation() {
        match posted.reservation {
            Some(open) => reservations.insert(name.clone(), open),
            None => reservations.remove(name),
        };
    }
    let ceiling = match &posting {
        Posting::Open { max, .. } => *max,
        Posting::Raise { max, .. } => Some(*max),
        _ => before.and_then(|before| before.ceiling),
    };
    let is_unknown = |held: &&Reservation| held.state == ReservationState::Unknown;
    let unknown = sum(reservations.values().filter(is_unknown).map(|held| held.amount));
    Ok(History {
        peak: posted.account.used().max(before.map_or(Money::ZERO, |before| before.peak)),
        postings: before.map_or(0, |before| before.postings) + 1,
        account: posted.account,
        reservations,
        ceiling,
        unknown,
        is_whole: true,
    })
}

fn difference(due: &Record, found: &Record) -> String {
    match (due.remaining, found.remaining) {
        (due, found) if due != found => {
            let shown = |money: Option<Money>| money.map_or_else(|| "no limit".to_owned(), |money| money.to_string());
            format!("it records {} remaining instead of {}", shown(found), shown(due))
        }
        _ => "it differs from the posting that it records".to_owned(),
    }
}

/// The flaw of an exceeded limit, if this posting is the first that exceeds it.
fn crossed(after: &History, before: Option<&History>, place: (ThreadId, u64)) -> Option<AccountFlaw> {
    let is_over = |history: &History| history.ceiling.is_some_and(|ceiling| history.account.used() > ceiling);
    let ceiling = after.ceiling.filter(|_| is_over(after) && !before.is_some_and(is_over))?;
    Some(AccountFlaw::Crossed {
        account: after.account.id.clone(),
        version: after.account.version,
        place,
        used: after.account.used(),
        ceiling,
    })
}

/// The disagreements between parents and children, as far as the records of both are complete.
fn unpaired(accounts: &BTreeMap<AccountId, History>) -> Vec<AccountFlaw> {
    let mut flaws = Vec::new();
    let parents: BTreeSet<_> = accounts.values().filter_map(|history| history.account.parent.as_ref()).collect();
    for parent in parents {
        let Some(above) = accounts.get(parent).filter(|above| above.is_whole) else { continue };
        let children = accounts.values().filter(|below| below.account.parent.as_ref() == Some(parent));
        let mut charged = Money::ZERO;
        let mut is_whole = true;
        for below in children {
            is_whole &= below.is_whole;
            if below.account.status == AccountStatus::Closed {
                charged = charged.saturating_add(below.account.spent());
            }
            if below.is_whole {
                flaws.extend(pair(above, below));
            }
        }
        if is_whole && charged != above.account.settled_children {
            let why = format!(
                "it was charged {} dollars for closed children, which spent {charged}",
                above.account.settled_children
            );
            flaws.push(AccountFlaw::Unpaired { parent: parent.clone(), child: None, why });
        }
    }
    flaws
}

fn pair(above: &History, below: &History) -> Option<AccountFlaw> {
    let child = &below.account;
    let is_for =
        |held: &&Reservation| held.child.as_ref() == Some(&child.id) && held.state != ReservationState::Unknown;
    let held: Vec<_> = above.reservations.values().filter(is_for).collect();
    let covered = sum(held.iter().map(|held| held.amount));
    let why = match (child.status == AccountStatus::Closed, held.is_empty()) {
        (true, false) => "the child is closed, but money is still reserved for it".to_owned(),
        (false, true) => "the child is open, but no money is reserved for it".to_owned(),
        (false, false) if child.max.is_some_and(|max| max > covered) => {
            format!("the child may spend more than the {covered} dollars reserved for it")
        }
        (false, false) if child.max.is_none() && above.account.max.is_some() => {
            "the child has no limit, but its parent has one".to_owned()
        }
        _ => return None,
    };
    Some(AccountFlaw::Unpaired { parent: above.account.id.clone(), child: Some(child.id.clone()), why })
}

fn sum(amounts: impl Iterator<Item = Money>) -> Money {
    amounts.fold(Money::ZERO, Money::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nanos(nanos: i64) -> Money {
        Money::from_nanos(nanos).unwrap()
    }

    /// The records of a parent with one child, in the logs of both.
    fn history() -> Vec<LocatedRecord> {
        let a = AccountId::new("a").unwrap();
        let b = AccountId::new("b").unwrap();
        let reservation = |name: &str| ReservationId::new(name).unwrap();
        let postings = vec![
            ("a", Posting::Open { account: a.clone(), parent: None, max: Some(nanos(100)) }),
            (
                "a",
                Posting::Reserve {
                    account: a.clone(),
                    reservation: reservation("for-b"),
                    amount: nanos(60),
                    child: Some(b.clone()),
                },
            ),
            ("a", Posting::Open { account: b.clone(), parent: Some(a.clone()), max: Some(nanos(60)) }),
            (
                "b",
                Posting::Reserve { account: b.clone(), reservation: reservation("r"), amount: nanos(50), child: None },
            ),
            ("b", Posting::Issue { account: b.clone(), reservation: reservation("r") }),
            (
                "b",
                Posting::Settle { account: b.clone(), reservation: reservation("r"), amount: nanos(20), unknown: true },
            ),
            ("b", Posting::Close { account: b.clone() }),
            (
                "b",
                Posting::Settle {
                    account: a.clone(),
                    reservation: reservation("for-b"),
                    amount: nanos(20),
                    unknown: false,
                },
            ),
        ];
        let mut accounts = BTreeMap::new();
        let mut held = BTreeMap::new();
        let mut seen = Vec::new();
        for (line, (thread, posting)) in (0..).zip(postings) {
            let known = posting.reservation().and_then(|name| held.get(name));
            let posted = post(accounts.get(posting.account()), known, &posting).unwrap();
            if let Some(name) = posting.reservation() {
                held.remove(name);
                held.extend(posted.reservation.map(|open| (open.id.clone(), open)));
            }
            accounts.insert(posted.account.id.clone(), posted.account);
            let thread = ThreadId::new(thread).unwrap();
            seen.push(LocatedRecord { thread, line, event_type: posting.event_type(), record: posted.record });
        }
        seen
    }

    #[test]
    fn records_replay_the_same_in_any_order_and_every_limit_held() {
        let seen = history();
        let forward = replay(seen.clone());
        assert_eq!(forward.flaws, []);
        assert_eq!(replay(seen.into_iter().rev()), forward);
        let [above, below] =
            [&forward.accounts[&AccountId::new("a").unwrap()], &forward.accounts[&AccountId::new("b").unwrap()]];
        assert_eq!((above.peak, above.account.spent(), above.account.reserved), (nanos(60), nanos(20), nanos(0)));
        assert_eq!((below.peak, below.unknown, below.account.status), (nanos(50), nanos(20), AccountStatus::Closed));
    }

    #[test]
    fn records_listed_by_a_tombstone_may_be_missing_and_no_others() {
        let seen = history();
        let buried = DeletedPostings::of(seen.iter().filter(|one| one.thread.as_str() == "b").map(|one| &one.record));
        let of = |account: &str, from, to| DeletedPostings { account: AccountId::new(account).unwrap(), from, to };
        assert_eq!(buried, [of("a", 3, 3), of("b", 2, 5)]);
        let left: Vec<_> = seen.iter().filter(|one| one.thread.as_str() == "a").cloned().collect();
        let replayed = replay_without(left.clone(), &buried);
        assert_eq!((replayed.flaws, replayed.unposted), (vec![], 0));
        assert!(replayed.accounts.values().all(|history| !history.is_whole), "the end of the accounts is unknown");
        // What comes after a gap is counted, and not posted.
        let gap = seen.iter().filter(|one| one.record.account_version != 2).cloned();
        assert_eq!(replay_without(gap, &[of("a", 2, 2), of("b", 2, 2)]).unposted, 4);
        // A record that no tombstone lists is still reported as missing.
        let incomplete: Vec<_> = seen.iter().filter(|one| one.record.account_version != 3).cloned().collect();
        let flaws = replay_without(incomplete, &[of("b", 2, 2)]).flaws;
        assert!(matches!(flaws[..], [AccountFlaw::Missing { from: 3, to: 3, .. }]), "{flaws:?}");
        // The remaining logs must not contradict each other, not even after the gap.
        let mut torn: Vec<_> = seen.into_iter().filter(|one| one.record.account_version != 2).collect();
        let mut other = torn.iter().find(|one| one.record.account_version == 4).unwrap().clone();
        (other.thread, other.record.amount) = (ThreadId::new("c").unwrap(), Some(nanos(1)));
        torn.push(other);
        let flaws = replay_without(torn, &[of("a", 2, 2), of("b", 2, 2)]).flaws;
        assert!(matches!(flaws[..], [AccountFlaw::Double { is_same: false, version: 4, .. }]), "{flaws:?}");
    }

    #[test]
    fn the_first_gap_between_buried_versions_is_found() {
        let account = AccountId::new("a").unwrap();
        let of = |from, to| DeletedPostings { account: account.clone(), from, to };
        let buried = [of(5, 6), of(1, 2), of(2, 3)];
        assert_eq!(unburied(&account, 1, 6, &buried), Some((4, 4)));
        assert_eq!((unburied(&account, 1, 3, &buried), unburied(&account, 5, 6, &buried)), (None, None));
        assert_eq!(unburied(&account, 3, 9, &[of(1, 3), of(4, 7)]), Some((8, 9)));
        assert_eq!(unburied(&AccountId::new("b").unwrap(), 1, 2, &buried), Some((1, 2)));
        assert_eq!(unburied(&account, 1, u64::MAX - 1, &[of(1, u64::MAX)]), None);
    }

    #[test]
    fn every_removed_doubled_or_changed_record_is_found() {
        let seen = history();
        for index in 0..seen.len() {
            let mut less = seen.clone();
            let gone = less.remove(index);
            let is_last = |account: &AccountId| seen[index + 1..].iter().all(|one| one.record.account != *account);
            let flaws = replay(less).flaws;
            // A missing last record leaves no gap in its own account; only the parent's records can reveal it.
            assert!(!flaws.is_empty() || is_last(&gone.record.account), "without {gone:?}");
            let mut more = seen.clone();
            more.push(LocatedRecord { line: 99, ..gone.clone() });
            assert!(
                matches!(replay(more).flaws[..], [AccountFlaw::Double { is_same: true, .. }]),
                "with two of {gone:?}"
            );
            let mut blend = seen.clone();
            let mut other = gone.clone();
            other.record.amount = Some(nanos(1));
            blend.push(LocatedRecord { thread: ThreadId::new("c").unwrap(), ..other.clone() });
            assert!(matches!(replay(blend).flaws[0], AccountFlaw::Double { is_same: false, .. }));
            let mut changed = seen.clone();
            changed[index] = LocatedRecord {
                record: Record { remaining: Some(nanos(7_777)), ..gone.record.clone() },
                ..gone.clone()
            };
            assert!(!replay(changed).flaws.is_empty(), "{gone:?} changed");
        }
        let mut cut = seen.clone();
        cut.pop();
        let flaws = replay(cut).flaws;
        assert!(
            matches!(
                &flaws[..],
                [AccountFlaw::Unpaired { child: Some(_), .. }, AccountFlaw::Unpaired { child: None, .. }]
            ),
            "{flaws:?}"
        );
    }
}
