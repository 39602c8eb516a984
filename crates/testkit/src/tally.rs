//! Results of experiments.

use std::collections::BTreeMap;
use std::fmt;

use crate::check::{Breach, Kind};

/// The result of one experiment on one scenario.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    /// The number of checked states.
    pub states: u64,
    /// The number of broken promises.
    pub breaches: u64,
}

/// The results of experiments.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// The counts, by experiment and scenario.
    pub counts: BTreeMap<(&'static str, String), Count>,
    /// Each broken promise, and the command that reproduces it.
    pub breaches: Vec<(String, Breach)>,
    /// What was skipped, and why.
    pub skipped: Vec<String>,
}

impl Tally {
    /// Counts one state.
    pub fn add(
        &mut self,
        experiment: &'static str,
        scenario: &str,
        again: impl FnOnce() -> String,
        held: Result<(), Breach>,
    ) {
        let count = self.counts.entry((experiment, scenario.to_owned())).or_default();
        count.states += 1;
        if let Err(breach) = held {
            count.breaches += 1;
            self.breaches.push((again(), breach));
        }
    }

    /// Adds the results of another tally.
    pub fn join(&mut self, other: Self) {
        for (key, count) in other.counts {
            let ours = self.counts.entry(key).or_default();
            ours.states += count.states;
            ours.breaches += count.breaches;
        }
        self.breaches.extend(other.breaches);
        self.skipped.extend(other.skipped);
    }

    /// The total number of states.
    pub fn states(&self) -> u64 {
        self.counts.values().map(|count| count.states).sum()
    }

    /// How many promises of a kind were broken.
    pub fn of(&self, kind: Kind) -> usize {
        self.breaches.iter().filter(|(_, breach)| breach.kind == kind).count()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((experiment, scenario), count) in &self.counts {
            let mark = if count.breaches > 0 { format!("  {} BROKEN", count.breaches) } else { String::new() };
            writeln!(f, "{experiment:<10} {scenario:<12} {:>7} states{mark}", count.states)?;
        }
        for (again, breach) in self.breaches.iter().take(60) {
            writeln!(f, "\n{breach}\n  again: {again}")?;
        }
        for skipped in &self.skipped {
            writeln!(f, "\n!! SKIPPED: {skipped}")?;
        }
        let [lost, blended, broken, stuck] =
            [Kind::Lost, Kind::Blended, Kind::Broken, Kind::Stuck].map(|kind| self.of(kind));
        write!(f, "\n{} states: {lost} lost, {blended} blended, {broken} broken, {stuck} stuck", self.states())
    }
}
