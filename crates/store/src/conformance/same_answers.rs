//! The same operations, chosen at random from a seed, on two stores: both must give the same answers, and hold the same logs, registries,
//! inboxes and accounts afterwards. Random names (of logs, owners and blobs), times, hashes and signatures differ and are left out.

use selvedge_model::limits::Limits;
use selvedge_model::{Batch, CommitKey, Event, NewThread, Posted, ThreadId};
use serde_json::Value;

use super::inbox::verdict;
use super::support::*;
use crate::contract::{Acquire, Committed, Filter, Lease, Store};
use crate::error::{Error, Result};

/// The threads that operations choose from.
const THREADS: [&str; 5] = ["one", "two", "three", "three/child", "four"];

/// One operation.
#[derive(Clone, Debug)]
enum Step {
    Commit(Box<Batch>),
    Post(Box<Posted>),
    Acquire(ThreadId, bool),
    Release(ThreadId),
    UnderLease(ThreadId, u64),
    Delete(ThreadId),
}

/// Chooses operations.
struct Choice<'a> {
    ids: &'a SeededIds,
}

impl Choice<'_> {
    fn thread(&self) -> ThreadId {
        id(THREADS[self.ids.below(THREADS.len() as u64) as usize])
    }

    fn batch(&self, number: u64) -> Batch {
        let thread = self.thread();
        let changeset = match self.ids.below(7) {
            0 => empty(),
            1 => says_as(&format!("m{}", self.ids.below(6)), &format!("text {}", self.ids.below(2))),
            2 => patches([set("key", self.ids.below(9).into()), push("list", number.into())]),
            3 => patches([count("key")]),
            4 => starts(&format!("run-{}", self.ids.below(4))),
            5 => finishes(&format!("run-{}", self.ids.below(4)), "natural"),
            _ => says(&format!("number {number}")),
        };
        let mut parts = vec![match self.ids.below(6) {
            0 => birth(&thread, self.new_thread(&thread)),
            1 => part_at(&thread, self.ids.below(6), changeset),
            _ => part(&thread, changeset),
        }];
        if self.ids.below(5) == 0 {
            parts.push(part(&self.thread(), says("beside")));
        }
        let mut made = batch(parts);
        if self.ids.below(4) == 0 {
            made = made.with_key(id::<CommitKey>(&format!("key-{}", self.ids.below(8))));
        }
        if self.ids.below(6) == 0 {
            made.posted.push(self.request());
        }
        if self.ids.below(6) == 0 {
            let name = format!("r{}", self.ids.below(5));
            made.parts[0].changeset.events.push(verdict(&name));
            made.consumed.push((made.parts[0].thread.clone(), id(&name)));
        }
        made
    }

    fn new_thread(&self, thread: &ThreadId) -> NewThread {
        let parent = thread.as_str().split_once('/').map(|(parent, _)| id::<ThreadId>(parent));
        NewThread { family_root_id: parent.clone(), parent_id: parent, limits: Some(Limits::default()), ..new_thread() }
    }

    fn request(&self) -> Posted {
        let kind = ["send", "cancel", "rename"][self.ids.below(3) as usize];
        request(&self.thread(), &format!("r{}", self.ids.below(5)), kind)
    }

    fn step(&self, number: u64) -> Step {
        match self.ids.below(20) {
            0..11 => Step::Commit(Box::new(self.batch(number))),
            11..14 => Step::Post(Box::new(self.request())),
            14 | 15 => Step::Acquire(self.thread(), self.ids.below(3) == 0),
            16 => Step::Release(self.thread()),
            17 | 18 => Step::UnderLease(self.thread(), number),
            _ if self.ids.below(4) == 0 => Step::Delete(self.thread()),
            _ => Step::Post(Box::new(self.request())),
        }
    }
}

/// One store, and the leases that were acquired in it.
struct Driven<'a, S> {
    store: &'a S,
    leases: Vec<Lease>,
}

impl<S: Store> Driven<'_, S> {
    /// What an operation answers, without what differs between stores.
    fn take(&mut self, step: &Step) -> String {
        match step {
            Step::Commit(batch) => said(self.store.commit((**batch).clone()).map(|answer| versions(&answer))),
            Step::Post(posted) => said(self.store.post((**posted).clone())),
            Step::Acquire(thread, take_over) => {
                let how = Acquire { take_over: *take_over, ..Acquire::default() };
                let answer = self.store.acquire(thread, how);
                let epoch = answer.as_ref().map(|lease| lease.epoch).ok();
                self.leases.extend(answer.as_ref().ok().cloned());
                format!("{epoch:?} {}", said(answer.map(|lease| lease.thread)))
            }
            Step::Release(thread) => match self.leases.iter().rposition(|lease| lease.thread == *thread) {
                Some(at) => said(self.store.release(&self.leases[at])),
                None => "no lease".to_owned(),
            },
            Step::UnderLease(thread, number) => {
                let epoch = self.leases.iter().rfind(|lease| lease.thread == *thread).map_or(1, |lease| lease.epoch);
                let part = part(thread, says(&format!("leased {number}"))).under(epoch);
                said(self.store.commit(Batch::of(part)).map(|answer| versions(&answer)))
            }
            Step::Delete(thread) => said(self.store.delete(thread).map(|tombstone| tombstone.head.version)),
        }
    }

    /// Everything that the store holds.
    fn content(&self) -> Vec<String> {
        let mut content = Vec::new();
        for name in THREADS {
            let thread = id(name);
            content.push(match self.store.get(&thread) {
                Ok(summary) => {
                    let manifest = &summary.manifest;
                    format!("{name}: {} {} {:?}", summary.version, manifest.status, manifest.title)
                }
                Err(error) => format!("{name}: {}", code(&error)),
            });
            for line in self.store.read(&thread, 0, 10_000).unwrap_or_default() {
                content.push(format!("{name} {}: {}", line.seq, plain(&line.event)));
            }
            let waiting = self.store.pending(&thread).unwrap_or_default();
            assert!(waiting.iter().all(|one| one.is_sealed));
            content.extend(waiting.into_iter().map(|one| format!("{name} waits: {:?}", one.posted)));
            for run in self.store.runs(&thread).unwrap_or_default() {
                content.push(format!("{name} {}: {:?}", run.run_id, run.meta));
            }
        }
        let page = self.store.list(&Filter::default(), None, 100).unwrap_or_else(|error| panic!("{error}"));
        content.push(page.items.iter().map(|one| one.manifest.thread_id.to_string()).collect::<Vec<_>>().join(" "));
        content
    }
}

fn said<T: std::fmt::Debug>(answer: Result<T>) -> String {
    match answer {
        Ok(answer) => format!("{answer:?}"),
        Err(error) => code(&error),
    }
}

fn code(error: &Error) -> String {
    use selvedge_model::Classify;
    error.code().to_owned()
}

fn versions(answer: &Committed) -> String {
    format!("{:?} replayed: {}", answer.versions, answer.replayed)
}

/// An event without what is random.
fn plain(event: &Event) -> String {
    if let Event::Checkpoint(checkpoint) = event {
        let with = sorted(checkpoint.with.clone());
        return format!(
            "{} {:?} {:?} {} {with:?}",
            checkpoint.version, checkpoint.reason, checkpoint.key, checkpoint.epoch
        );
    }
    let mut value = serde_json::to_value(event).unwrap_or_else(|error| panic!("{error}"));
    without(&mut value, "log_id");
    value.to_string()
}

fn without(value: &mut Value, name: &str) {
    if let Value::Object(fields) = value {
        fields.remove(name);
        fields.values_mut().for_each(|field| without(field, name));
    }
}

/// Does the same operations on two empty stores and compares them; a failure names the seed.
pub fn same_answers<A: Store, B: Store>(one: &A, other: &B, seed: u64, steps: u64) {
    let ids = SeededIds::new(seed);
    let choice = Choice { ids: &ids };
    let mut one = Driven { store: one, leases: Vec::new() };
    let mut other = Driven { store: other, leases: Vec::new() };
    for number in 0..steps {
        let step = choice.step(number);
        assert_eq!(one.take(&step), other.take(&step), "seed {seed}, operation {number}: {step:?}");
    }
    assert_eq!(one.content(), other.content(), "seed {seed}");
}
