//! What must be true after an interruption, in every scenario: no acknowledged fact is lost, nothing is applied in part, everything
//! verifies, and the store can be used.

mod family;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use selvedge_log::recovery::Finding;
use selvedge_log::scan::ScannedChangeset;
use selvedge_model::account::{AccountId, Record};
use selvedge_model::{Batch, Changeset, CommitKey, Expect, Message, Part, Reason, Role, Status, ThreadId};
use selvedge_store::{Commit, Filter, Ledger, Logs, Registry};
use selvedge_store_local::LocalStore;
use selvedge_store_local::disk::RealDisk;

use self::family::{Links, Member};
use crate::fact::{Fact, FactRecorder, chain};
use crate::home::Home;
use crate::scenario::Scenario;

/// How a promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An acknowledged change is missing, or a refused one is present.
    Lost,
    /// A change is present in part.
    Blended,
    /// A log or a file beside it does not verify.
    Broken,
    /// The store can't be opened, or can't be written to.
    Stuck,
}

/// A broken promise.
#[derive(Clone, Debug)]
pub struct Breach {
    /// The kind.
    pub kind: Kind,
    /// The evidence.
    pub why: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.why)
    }
}

/// The result of a check.
pub type CheckResult = Result<(), Breach>;

/// A breach.
pub fn breach(kind: Kind, why: impl Into<String>) -> Breach {
    Breach { kind, why: why.into() }
}

/// Turns an error into a breach.
pub fn or<E: Into<crate::LabError>>(kind: Kind, what: &str) -> impl FnOnce(E) -> Breach {
    move |error| breach(kind, format!("{what}: {}", chain(&error.into())))
}

/// Checks a home after an interruption, runs the scenario again, and checks once more.
pub fn after_cut(home: &Home, scenario: &Scenario, facts: &[Fact]) -> CheckResult {
    let opened = home.open();
    match opened {
        Ok(store) => {
            facts_hold(home, &store, facts)?;
            if !scenario.unsettled {
                all_consistent(&store)?;
                (scenario.check)(home, &store, facts)?;
            }
        }
        Err(_) if scenario.unsettled => {}
        Err(error) => return Err(breach(Kind::Stuck, format!("the store can't be opened: {error}"))),
    }
    let mut again = FactRecorder::default();
    (scenario.act)(home, &mut again).map_err(or(Kind::Stuck, "the second run fails"))?;
    let store = home.open().map_err(or(Kind::Stuck, "the store can't be opened after the second run"))?;
    for fact in facts.iter().filter(|fact| matches!(fact, Fact::Committed { .. })) {
        if !again.facts().contains(fact) {
            return Err(breach(
                Kind::Lost,
                format!("{fact:?} was acknowledged, but the second run got {:?}", again.facts()),
            ));
        }
    }
    facts_hold(home, &store, again.facts())?;
    all_consistent(&store)?;
    (scenario.check)(home, &store, again.facts())?;
    accepts_appends(&store)?;
    Ok(())
}

/// Checks that the acknowledged facts are true.
pub fn facts_hold(home: &Home, store: &LocalStore, facts: &[Fact]) -> CheckResult {
    let mut deleted: BTreeSet<&ThreadId> = BTreeSet::new();
    for fact in facts {
        if let Fact::Deleted { thread } = fact {
            deleted.insert(thread);
        }
    }
    for (place, fact) in facts.iter().enumerate() {
        fact_holds(home, store, fact, &facts[place..], &deleted)?;
    }
    Ok(())
}

fn fact_holds(
    home: &Home,
    store: &LocalStore,
    fact: &Fact,
    since: &[Fact],
    deleted: &BTreeSet<&ThreadId>,
) -> CheckResult {
    let lost = |why: String| Err(breach(Kind::Lost, format!("{fact:?}: {why}")));
    match fact {
        Fact::Committed { key, versions } => {
            let found = store.outcome(key).map_err(or(Kind::Broken, "a key can't be looked up"))?;
            for (thread, version) in versions.iter().filter(|(thread, _)| !deleted.contains(thread)) {
                match store.head(thread) {
                    Ok(head) if head.version >= *version => {}
                    // A deletion may have happened before it was acknowledged.
                    Err(_) if store.tombstone(thread).is_ok_and(|found| found.is_some()) => {}
                    other => return lost(format!("its head is {other:?}")),
                }
            }
            match found {
                Some(found) if sorted(&found.versions) == sorted(versions) => Ok(()),
                other => lost(format!("its key gives {other:?}")),
            }
        }
        Fact::Refused { key } => {
            let later = |fact: &Fact| matches!(fact, Fact::Committed { key: done, .. } if done == key);
            // If the retry was interrupted before it was acknowledged, both outcomes are valid.
            let tried_again = since.iter().any(later) || since.iter().filter(|other| *other == fact).count() == 1;
            match store.outcome(key) {
                Ok(Some(found)) if !tried_again => lost(format!("it is present: {found:?}")),
                Ok(_) => Ok(()),
                Err(error) => lost(error.to_string()),
            }
        }
        Fact::Reached { thread, version } => match store.head(thread) {
            Ok(head) if head.version >= *version => Ok(()),
            Err(_) if deleted.contains(thread) => Ok(()),
            other => lost(format!("its head is {other:?}")),
        },
        Fact::Blob { thread, blob } => match store.blob(thread, blob) {
            Ok(_) => Ok(()),
            Err(error) if since.iter().any(|fact| matches!(fact, Fact::Erased { blob: gone, .. } if gone == blob)) => {
                _ = error;
                Ok(())
            }
            Err(selvedge_store::Error::Erased { .. }) => Ok(()),
            Err(error) => lost(error.to_string()),
        },
        Fact::Erased { thread, blob } => match store.blob(thread, blob) {
            Ok(_) => lost("its content still exists".to_owned()),
            Err(_) => Ok(()),
        },
        Fact::Deleted { thread } => match (store.tombstone(thread), store.head(thread)) {
            (Ok(Some(_)), Err(_)) => Ok(()),
            other => lost(format!("it is {other:?}")),
        },
        Fact::Signs { fingerprint } => match home.signer() {
            Ok(signer) if signer.fingerprint() == *fingerprint => Ok(()),
            Ok(signer) => lost(format!("key {} signs", signer.fingerprint().short())),
            Err(error) => lost(error.to_string()),
        },
        Fact::BackedUp { folder } => {
            let trust = home.trust().map_err(or(Kind::Broken, "the trusted keys can't be read"))?;
            let checked = LocalStore::check_backup(&home.root().join(folder), &trust, &RealDisk, &mut |_, _| {});
            checked.map(|_| ()).or_else(|error| lost(error.to_string()))
        }
        Fact::Own { .. } => Ok(()),
    }
}

fn sorted(versions: &[(ThreadId, u64)]) -> Vec<(ThreadId, u64)> {
    let mut versions = versions.to_vec();
    versions.sort();
    versions
}

/// What the checks need from one log.
#[derive(Debug, Default)]
struct LogSummary {
    epochs: Vec<u64>,
    with: BTreeMap<u64, Vec<(ThreadId, u64)>>,
    keys: Vec<(CommitKey, u64)>,
    records: Vec<Record>,
    links: Links,
}

/// Checks that every log verifies, every batch is in all its threads, every key occurs once, the ledger agrees with the logs, and the
/// links of chains and families are complete on both sides.
pub fn all_consistent(store: &LocalStore) -> CheckResult {
    let listed = store.list(&Filter::default(), None, 1000).map_err(or(Kind::Broken, "threads can't be listed"))?;
    let mut logs: BTreeMap<ThreadId, LogSummary> = BTreeMap::new();
    let mut family: BTreeMap<ThreadId, Member> = BTreeMap::new();
    for summary in listed.items {
        let thread = summary.manifest.thread_id.clone();
        let mut log = LogSummary::default();
        let verdict = store.verify(&thread, &mut |entry| log.read(entry));
        let verdict = verdict.map_err(or(Kind::Broken, "a log can't be verified"))?;
        if verdict.judgement.finding != Finding::Sound {
            return Err(breach(Kind::Broken, format!("`{thread}`: {:?}", verdict.judgement.finding)));
        }
        if verdict.healed_bytes > 0 {
            return Err(breach(Kind::Broken, format!("`{thread}`: {} bytes are not drained", verdict.healed_bytes)));
        }
        if verdict.judgement.unchanged_up_to != Some(summary.version) {
            return Err(breach(Kind::Blended, format!("`{thread}`: {:?} and {}", verdict.judgement, summary.version)));
        }
        let links = std::mem::take(&mut log.links);
        family.insert(thread.clone(), Member { manifest: summary.manifest, links });
        logs.insert(thread, log);
    }
    for (thread, log) in &logs {
        if !log.epochs.is_sorted() {
            return Err(breach(Kind::Blended, format!("`{thread}`: an older epoch wrote again: {:?}", log.epochs)));
        }
    }
    batches_agree(store, &logs)?;
    keys_once(store, &logs)?;
    ledger_agrees(store, &logs)?;
    family::agrees(store, &family)
}

impl LogSummary {
    fn read(&mut self, entry: &ScannedChangeset) {
        if let Some(checkpoint) = entry.checkpoint() {
            self.epochs.push(checkpoint.epoch);
            self.with.insert(checkpoint.version, checkpoint.with.clone());
            self.keys.extend(checkpoint.key.clone().map(|key| (key, checkpoint.version)));
        }
        for line in &entry.lines {
            self.records.extend(line.event.posting().map(|(_, record)| record.clone()));
            self.links.read(&line.event);
        }
    }
}

fn batches_agree(store: &LocalStore, logs: &BTreeMap<ThreadId, LogSummary>) -> CheckResult {
    for (thread, log) in logs {
        for (version, with) in &log.with {
            for (other, at) in with {
                let back = logs.get(other).and_then(|other| other.with.get(at));
                let agrees = back.is_some_and(|back| back.contains(&(thread.clone(), *version)));
                if !agrees && !store.tombstone(other).is_ok_and(|found| found.is_some()) {
                    let why = format!("`{thread}` {version} was committed with `{other}` {at}, which has {back:?}");
                    return Err(breach(Kind::Blended, why));
                }
            }
        }
    }
    Ok(())
}

fn keys_once(store: &LocalStore, logs: &BTreeMap<ThreadId, LogSummary>) -> CheckResult {
    for (thread, log) in logs {
        let mut seen = BTreeSet::new();
        for (key, version) in &log.keys {
            if !seen.insert(key) {
                return Err(breach(Kind::Blended, format!("`{key}` occurs twice in `{thread}`")));
            }
            match store.outcome(key) {
                Ok(Some(found)) if found.version_of(thread) == Some(*version) => {}
                other => {
                    let why = format!("`{thread}` has `{key}` at {version}, but the store returns {other:?}");
                    return Err(breach(Kind::Blended, why));
                }
            }
        }
    }
    Ok(())
}

fn ledger_agrees(store: &LocalStore, logs: &BTreeMap<ThreadId, LogSummary>) -> CheckResult {
    let mut accounts: BTreeMap<&AccountId, BTreeMap<u64, &Record>> = BTreeMap::new();
    for record in logs.values().flat_map(|log| &log.records) {
        let twice = accounts.entry(&record.account).or_default().insert(record.account_version, record);
        if twice.is_some() {
            let why = format!("account `{}` has two postings {}", record.account, record.account_version);
            return Err(breach(Kind::Blended, why));
        }
    }
    for (id, postings) in accounts {
        let account = store.account(id).map_err(or(Kind::Broken, "an account can't be read"))?;
        let last = postings.last_key_value().map(|(version, record)| (*version, record.remaining));
        let known = account.as_ref().map(|account| (account.version, account.remaining()));
        if last != known || postings.len() as u64 != known.map_or(0, |(version, _)| version) {
            let why = format!(
                "account `{id}`: the logs end at {last:?} with {} postings, the ledger has {known:?}",
                postings.len()
            );
            return Err(breach(Kind::Blended, why));
        }
    }
    Ok(())
}

/// Checks that every thread accepts a new changeset, unless it was handed off.
pub fn accepts_appends(store: &LocalStore) -> CheckResult {
    let listed = store.list(&Filter::default(), None, 1000).map_err(or(Kind::Broken, "threads can't be listed"))?;
    for summary in listed.items.into_iter().filter(|summary| summary.manifest.status != Status::Continued) {
        let thread = summary.manifest.thread_id;
        let next =
            Changeset { messages: vec![Message::text(Role::User, "next")], ..Changeset::empty(Reason::UserMessage) };
        let part = Part::new(thread.clone(), Expect::Exact(summary.version), next);
        let committed = store.commit(Batch::of(part)).map_err(or(Kind::Stuck, "the next append fails"))?;
        if committed.version_of(&thread) != Some(summary.version + 1) {
            return Err(breach(Kind::Blended, format!("after {} came {committed:?}", summary.version)));
        }
        let verdict = store.verify(&thread, &mut |_| {}).map_err(or(Kind::Broken, "a log can't be verified"))?;
        if verdict.judgement.unchanged_up_to != Some(summary.version + 1) {
            return Err(breach(Kind::Broken, format!("`{thread}`: {:?}", verdict.judgement)));
        }
    }
    Ok(())
}
