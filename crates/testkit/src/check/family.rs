//! Chains and families: no orphans, and no partial changes.
//!
//! - A thread that was handed off has one successor, which names it; a successor has a predecessor that was handed off to it.
//! - A child has a parent whose log records its start, and every child that a log records exists.
//! - Money is reserved once, for a thread that exists; a child that may still spend has a reservation, and a thread that has
//!   ended has none for its own calls.

use std::collections::BTreeMap;

use selvedge_model::account::{AccountId, AccountStatus, Record};
use selvedge_model::id::ReservationId;
use selvedge_model::{Event, Manifest, Status, ThreadId};
use selvedge_store::{Ledger, Registry};
use selvedge_store_local::LocalStore;

use super::{CheckResult, Kind, breach, or};

/// One thread, and its links to other threads.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) manifest: Manifest,
    pub(super) links: Links,
}

/// The links to other threads in one log.
#[derive(Debug, Default)]
pub(super) struct Links {
    /// Threads that it records as started.
    children: Vec<ThreadId>,
    /// Threads that it records as its successors.
    successors: Vec<ThreadId>,
    /// Its postings: the type of the event, and the record.
    postings: Vec<(&'static str, Record)>,
}

impl Links {
    pub(super) fn read(&mut self, event: &Event) {
        match event {
            Event::ChildSpawned(fields) => {
                let named = fields.get("thread_id").and_then(|id| id.as_str());
                self.children.extend(named.and_then(|id| ThreadId::new(id).ok()));
            }
            Event::ThreadHandoff(to) | Event::ThreadResumed(to) => self.successors.push(to.new_thread_id.clone()),
            _ => self.postings.extend(event.posting().map(|(kind, record)| (kind, record.clone()))),
        }
    }
}

type Family = BTreeMap<ThreadId, Member>;

/// Checks that all links are complete on both sides.
pub(super) fn agrees(store: &LocalStore, all: &Family) -> CheckResult {
    let is_buried = |thread: &ThreadId| store.tombstone(thread).is_ok_and(|found| found.is_some());
    let is_there = |thread: &ThreadId| all.contains_key(thread) || is_buried(thread);
    for (thread, member) in all {
        chain(thread, member, all, &is_there)?;
        parents(thread, member, all, &is_there)?;
    }
    money(store, all, &is_there)
}

fn chain(thread: &ThreadId, member: &Member, all: &Family, is_there: &dyn Fn(&ThreadId) -> bool) -> CheckResult {
    let blended = |why: String| Err(breach(Kind::Blended, format!("`{thread}` {why}")));
    let is_continued = member.manifest.status == Status::Continued;
    match (&member.links.successors[..], is_continued) {
        ([], true) => return blended("is continued by no thread".to_owned()),
        ([_, _, ..], _) => return blended(format!("is continued twice: {:?}", member.links.successors)),
        ([successor], false) => return blended(format!("names the successor `{successor}` but is not continued")),
        ([successor], true) if !is_there(successor) => {
            return blended(format!("is continued in `{successor}`, which does not exist"));
        }
        _ => {}
    }
    match &member.manifest.continuation_of {
        Some(before) if !is_there(before) => blended(format!("continues `{before}`, which does not exist")),
        Some(before) => match all.get(before) {
            Some(known) if !known.links.successors.contains(thread) => {
                blended(format!("continues `{before}`, which does not name it"))
            }
            _ => Ok(()),
        },
        None => Ok(()),
    }
}

fn parents(thread: &ThreadId, member: &Member, all: &Family, is_there: &dyn Fn(&ThreadId) -> bool) -> CheckResult {
    let blended = |why: String| Err(breach(Kind::Blended, format!("`{thread}` {why}")));
    for child in &member.links.children {
        if !is_there(child) {
            return blended(format!("started `{child}`, which does not exist"));
        }
        if all.get(child).is_some_and(|child| child.manifest.parent_id.as_ref() != Some(thread)) {
            return blended(format!("started `{child}`, which has another parent"));
        }
    }
    let mut children = member.links.children.clone();
    children.sort();
    children.dedup();
    if children.len() != member.links.children.len() {
        return blended(format!("started a child twice: {:?}", member.links.children));
    }
    // A successor has the parent of the thread that it continues.
    let is_born = member.manifest.chain_root_id == *thread;
    match member.manifest.parent_id.as_ref().filter(|_| is_born) {
        Some(parent) if !is_there(parent) => blended(format!("is an orphan: `{parent}` does not exist")),
        Some(parent) if all.get(parent).is_some_and(|parent| !parent.links.children.contains(thread)) => {
            blended(format!("is an orphan: `{parent}` does not name it"))
        }
        _ => Ok(()),
    }
}

/// The open reservations of an account, and the children they are for.
type OpenReservations = BTreeMap<ReservationId, Option<AccountId>>;

fn money(store: &LocalStore, all: &Family, is_there: &dyn Fn(&ThreadId) -> bool) -> CheckResult {
    let mut reservations_of: BTreeMap<&AccountId, OpenReservations> = BTreeMap::new();
    for (account, postings) in by_account(all) {
        reservations_of.insert(account, open_reservations(account, postings.values().copied())?);
    }
    for (id, aside) in &reservations_of {
        let blended = |why: String| Err(breach(Kind::Blended, format!("account `{id}` {why}")));
        if !is_there(id) {
            return blended("belongs to no thread".to_owned());
        }
        let account = store.account(id).map_err(or(Kind::Broken, "an account can't be read"))?;
        let Some(account) = account else { return blended("is only in the logs".to_owned()) };
        if account.open != aside.len() as u64 {
            return blended(format!("has {} reservations, but the logs have {aside:?}", account.open));
        }
        if let Some(child) = aside.values().flatten().find(|child| !is_there(child)) {
            return blended(format!("holds money for `{child}`, which does not exist"));
        }
        let pays_for = |parent: &AccountId| {
            reservations_of.get(parent).is_some_and(|aside| aside.values().flatten().any(|child| child == *id))
        };
        if let Some(parent) = account.parent.as_ref().filter(|_| account.status != AccountStatus::Closed)
            && !pays_for(parent)
        {
            return blended(format!("is open, but `{parent}` holds nothing for it"));
        }
        if has_ended(id, all) && aside.values().any(Option::is_none) {
            return blended(format!("holds money for calls although its chain has ended: {aside:?}"));
        }
    }
    Ok(())
}

/// All postings, by account and account version.
fn by_account(all: &Family) -> BTreeMap<&AccountId, BTreeMap<u64, (&'static str, &Record)>> {
    let mut accounts: BTreeMap<&AccountId, BTreeMap<u64, (&'static str, &Record)>> = BTreeMap::new();
    for (kind, record) in all.values().flat_map(|member| &member.links.postings) {
        accounts.entry(&record.account).or_default().insert(record.account_version, (kind, record));
    }
    accounts
}

/// The reservations that are open at the end; fails if one is made or ended twice.
fn open_reservations<'a>(
    account: &AccountId,
    postings: impl Iterator<Item = (&'static str, &'a Record)>,
) -> Result<OpenReservations, super::Breach> {
    let mut aside = OpenReservations::new();
    for (kind, record) in postings {
        let Some(reservation) = &record.reservation else { continue };
        match kind {
            "reserved" | "reserved_again" => {
                let is_for_known = record.child.is_some() && aside.values().any(|child| *child == record.child);
                if is_for_known || aside.insert(reservation.clone(), record.child.clone()).is_some() {
                    let why = format!("account `{account}` reserves twice: {record:?}");
                    return Err(breach(Kind::Blended, why));
                }
            }
            "settled" | "released" if aside.remove(reservation).is_none() => {
                let why = format!("account `{account}` ends a reservation that is not open: {record:?}");
                return Err(breach(Kind::Blended, why));
            }
            _ => {}
        }
    }
    Ok(aside)
}

/// Whether the chain of an account, which is named by its first thread, has ended.
fn has_ended(root: &ThreadId, all: &Family) -> bool {
    let links = all.values().filter(|member| member.manifest.chain_root_id == *root);
    links.map(|member| member.manifest.status).all(Status::is_terminal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_model::Money;
    use serde_json::json;

    fn id(name: &str) -> ThreadId {
        ThreadId::new(name).unwrap()
    }

    fn member(name: &str, status: Status) -> Member {
        let manifest = json!({
            "thread_id": name, "kind": "agent", "agent_id": "scribe", "status": status.as_str(), "chain_root_id": name, "inputs": {},
            "acknowledged": [], "cost": {}, "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z",
        });
        Member { manifest: serde_json::from_value(manifest).unwrap(), links: Links::default() }
    }

    fn found(members: Vec<Member>) -> String {
        let all: Family = members.into_iter().map(|member| (member.manifest.thread_id.clone(), member)).collect();
        let is_there = |thread: &ThreadId| all.contains_key(thread);
        let held = all.iter().try_for_each(|(thread, member)| {
            chain(thread, member, &all, &is_there)?;
            parents(thread, member, &all, &is_there)
        });
        held.err().map(|breach| breach.why).unwrap_or_default()
    }

    #[test]
    fn a_child_that_its_parent_does_not_name_and_a_missing_child_are_found() {
        let parent = || {
            let mut parent = member("parent", Status::Running);
            let spawned = json!({"thread_id": "child"});
            parent.links.read(&Event::ChildSpawned(spawned.as_object().unwrap().clone()));
            parent
        };
        let child = || {
            let mut child = member("child", Status::Created);
            child.manifest.parent_id = Some(id("parent"));
            child
        };
        assert_eq!(found(vec![parent(), child()]), "");
        assert!(found(vec![parent()]).contains("which does not exist"));
        assert!(found(vec![child()]).contains("is an orphan"));
        assert!(found(vec![member("parent", Status::Running), child()]).contains("is an orphan"));
        let mut stranger = child();
        stranger.manifest.parent_id = None;
        assert!(found(vec![parent(), stranger]).contains("another parent"));
    }

    #[test]
    fn a_chain_with_a_missing_link_is_found() {
        let old = |status: Status| {
            let mut old = member("old", status);
            old.links.successors.push(id("new"));
            old
        };
        let new = || {
            let mut new = member("new", Status::Created);
            new.manifest.continuation_of = Some(id("old"));
            new.manifest.chain_root_id = id("old");
            new
        };
        assert_eq!(found(vec![old(Status::Continued), new()]), "");
        assert!(found(vec![old(Status::Continued)]).contains("which does not exist"));
        assert!(found(vec![old(Status::Completed), new()]).contains("is not continued"));
        assert!(found(vec![member("old", Status::Continued)]).contains("by no thread"));
        assert!(found(vec![member("old", Status::Completed), new()]).contains("does not name it"));
    }

    #[test]
    fn reservations_that_are_made_or_ended_twice_are_found() {
        let record = |version: u64, reservation: &str, child: Option<&str>| Record {
            account: id("parent"),
            account_version: version,
            remaining: None,
            reservation: Some(ReservationId::new(reservation).unwrap()),
            amount: Money::from_nanos(1).ok(),
            parent: None,
            child: child.map(id),
            unknown: false,
            returned: None,
            evidence: None,
        };
        let one = record(2, "one", Some("child"));
        let same = record(3, "two", Some("child"));
        let aside = |postings: &[(&'static str, &Record)]| open_reservations(&id("parent"), postings.iter().copied());
        assert_eq!(aside(&[("reserved", &one)]).unwrap().len(), 1);
        assert!(aside(&[("reserved", &one), ("settled", &one)]).unwrap().is_empty());
        assert_eq!(aside(&[("reserved", &one), ("settled", &one), ("reserved_again", &same)]).unwrap().len(), 1);
        assert!(aside(&[("reserved", &one), ("reserved", &same)]).unwrap_err().why.contains("twice"));
        assert!(aside(&[("reserved", &one), ("reserved", &one)]).unwrap_err().why.contains("twice"));
        assert!(aside(&[("released", &one)]).unwrap_err().why.contains("is not open"));
    }
}
