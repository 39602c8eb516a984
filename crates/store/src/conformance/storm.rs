//! Random operations, in any order, by any handle: a map is the model, and the store must match it.

use std::collections::BTreeMap;

use selvedge_model::{Batch, Changeset, Expect, Message, Part, ThreadId};
use serde_json::{Value, json};

use super::Harness;
use super::support::*;
use crate::contract::{Commit, Store};

/// The expected thread.
#[derive(Default)]
struct Model {
    version: u64,
    messages: Vec<(String, String)>,
    count: Option<u64>,
}

/// The next random operation on one thread.
#[derive(Clone, Debug)]
struct Step {
    thread: usize,
    expect: Expect,
    messages: Vec<(String, String)>,
    set: bool,
    counts: u64,
}

fn draw(chance: &SeededIds, thread: usize, version: u64) -> Step {
    let message = |_| (format!("m{}", chance.below(12)), format!("text {}", chance.below(2)));
    Step {
        thread,
        expect: match chance.below(4) {
            0 => Expect::Exact(version + chance.below(2)),
            1 => Expect::Exact(version),
            _ => Expect::Any,
        },
        messages: (0..chance.below(3)).map(message).collect(),
        set: chance.below(10) == 0,
        counts: chance.below(3),
    }
}

impl Step {
    fn part(&self, threads: &[ThreadId]) -> Part {
        let ops = self.set.then(|| set("n", json!(0))).into_iter().chain((0..self.counts).map(|_| count("n")));
        let messages = self.messages.iter().map(|(name, text)| says_as(name, text).messages.remove(0)).collect();
        let changeset = Changeset { messages, ..patches(ops) };
        Part::new(threads[self.thread].clone(), self.expect, changeset)
    }

    /// The thread after this operation, if it must be accepted.
    fn apply(&self, before: &Model) -> Option<Model> {
        if matches!(self.expect, Expect::Exact(version) if version != before.version) {
            return None;
        }
        let mut messages = before.messages.clone();
        for (name, text) in &self.messages {
            match messages.iter().find(|(known, _)| known == name) {
                Some((_, known)) if known != text => return None,
                Some(_) => {}
                None => messages.push((name.clone(), text.clone())),
            }
        }
        let count = if self.set { Some(0) } else { before.count };
        let count = match (count, self.counts) {
            (None, 1..) => return None,
            (count, more) => count.map(|count| count + more),
        };
        Some(Model { version: before.version + 1, messages, count })
    }
}

/// After a storm of batches, many of which must be refused, the store matches its model.
pub fn a_storm_of_batches_matches_its_model<H: Harness>(harness: &H) {
    for seed in 0..3 {
        storm(harness, seed);
    }
}

fn storm<H: Harness>(harness: &H, seed: u64) {
    let chance = SeededIds::new(seed);
    let mut stores = [harness.open(), harness.open()];
    let threads: Vec<ThreadId> = (0..3).map(|number| create(&stores[0], &format!("storm-{seed}-{number}"))).collect();
    let mut models: Vec<Model> = threads.iter().map(|_| Model::default()).collect();
    let mut answered: BTreeMap<String, (Batch, Vec<(ThreadId, u64)>)> = BTreeMap::new();
    for number in 0..120 {
        let handle = chance.below(2) as usize;
        if chance.below(20) == 0 {
            // This process dies, and another replaces it.
            stores[handle] = harness.open();
        }
        if let Some((request, versions)) = answered.get(&format!("{seed}.{}", chance.below(200))) {
            let again = commit(&stores[handle], request.clone());
            assert_eq!((&again.versions, again.replayed), (versions, true), "seed {seed}, step {number}: a retry");
        }
        let chosen: Vec<usize> = (0..3).filter(|_| chance.below(2) == 0).collect();
        let steps: Vec<Step> = chosen.into_iter().map(|thread| draw(&chance, thread, models[thread].version)).collect();
        let key = format!("{seed}.{number}");
        let request = batch(steps.iter().map(|step| step.part(&threads))).with_key(id(&key));
        let after: Option<Vec<_>> = steps.iter().map(|step| step.apply(&models[step.thread])).collect();
        let answer = stores[handle].commit(request.clone());
        match (after.filter(|after| !after.is_empty()), answer) {
            (Some(after), Ok(committed)) => {
                for (step, after) in steps.iter().zip(after) {
                    models[step.thread] = after;
                }
                answered.insert(key, (request, committed.versions));
            }
            (None, Err(_)) => {}
            (expected, answer) => {
                let verdict = if expected.is_some() { "taken" } else { "refused" };
                panic!("seed {seed}, step {number}: {steps:?} must be {verdict}: {answer:?}");
            }
        }
    }
    for (thread, model) in threads.iter().zip(&models) {
        compare(harness, &stores[0], thread, model, seed);
    }
}

fn compare<H: Harness>(harness: &H, store: &impl Store, thread: &ThreadId, model: &Model, seed: u64) {
    verified(store, &harness.trust(), thread);
    let found = loaded(store, &harness.trust(), thread);
    let said =
        |message: &Message| (message.id.as_ref().map(ToString::to_string).unwrap_or_default(), message.plain_text());
    let messages: Vec<_> = found.messages.iter().map(said).collect();
    assert_eq!((found.version, messages), (Some(model.version), model.messages.clone()), "seed {seed}: `{thread}`");
    assert_eq!(found.state.get("n").and_then(Value::as_u64), model.count, "seed {seed}: `{thread}`");
    assert_eq!(store.get(thread).unwrap().version, model.version, "seed {seed}: `{thread}`");
}
