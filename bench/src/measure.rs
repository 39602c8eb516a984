//! Laps, rounds and spread.
//!
//! - A *lap* is a number of operations, each timed by itself; preparing their input is not included.
//! - A *round* is one lap of each of the compared subjects, right after each other.
//! - The *spread* of some figures is their median, deciles, quartiles and extremes.

use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::Outcome;

/// Longer than the store waits before it syncs transcripts in the background: after such a pause no background work of one lap is charged
/// to the next.
const SETTLE: Duration = Duration::from_millis(600);

/// Waits for background work to end.
pub(crate) fn settle() {
    thread::sleep(SETTLE);
}

/// Processor time of this process so far, including all its threads and the kernel on their behalf.
pub(crate) fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Some operations, one after the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lap {
    /// How long each took, in microseconds.
    pub(crate) each: Vec<f64>,
    /// Processor time of the process meanwhile.
    pub(crate) cpu: Duration,
}

impl Lap {
    /// The mean time of one, in microseconds.
    pub(crate) fn mean(&self) -> f64 {
        self.each.iter().sum::<f64>() / self.each.len().max(1) as f64
    }

    /// The median time of one, in microseconds.
    pub(crate) fn median(&self) -> f64 {
        Spread::of(&self.each).median
    }

    /// The mean processor time of one, in microseconds.
    pub(crate) fn cpu_mean(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.each.len().max(1) as f64
    }
}

/// Times one operation.
pub(crate) fn timed(work: impl FnOnce() -> Outcome<()>) -> Outcome<Duration> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

/// Runs a lap of operations that time themselves; background work is not waited for.
pub(crate) fn lap(count: usize, mut operation: impl FnMut() -> Outcome<Duration>) -> Outcome<Lap> {
    let began = cpu();
    let each = (0..count).map(|_| Ok(operation()?.as_secs_f64() * 1e6)).collect::<Outcome<_>>()?;
    Ok(Lap { each, cpu: cpu().saturating_sub(began) })
}

/// Runs two laps at once, their operations in turns.
pub(crate) fn paired(
    count: usize,
    mut one: impl FnMut() -> Outcome<Duration>,
    mut other: impl FnMut() -> Outcome<Duration>,
) -> Outcome<(Lap, Lap)> {
    let mut both = (Lap::default(), Lap::default());
    for _ in 0..count {
        both.0.each.push(one()?.as_secs_f64() * 1e6);
        both.1.each.push(other()?.as_secs_f64() * 1e6);
    }
    Ok(both)
}

/// Runs a lap and waits for its background work, which is included in its processor time.
pub(crate) fn whole_lap(count: usize, operation: impl FnMut() -> Outcome<Duration>) -> Outcome<Lap> {
    let began = cpu();
    let lap = lap(count, operation)?;
    settle();
    Ok(Lap { cpu: cpu().saturating_sub(began), ..lap })
}

/// Runs rounds of `one` and `other` in turns; `other` receives the result of `one`.
pub(crate) fn in_turns<A, B>(
    rounds: usize,
    mut one: impl FnMut() -> Outcome<A>,
    mut other: impl FnMut(&A) -> Outcome<B>,
) -> Outcome<Vec<(A, B)>> {
    (0..rounds)
        .map(|_| {
            let a = one()?;
            let b = other(&a)?;
            Ok((a, b))
        })
        .collect()
}

/// The distribution of some figures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    /// The first decile.
    pub(crate) tenth: f64,
    pub(crate) quarter: f64,
    pub(crate) median: f64,
    pub(crate) three_quarters: f64,
    /// The ninth decile.
    pub(crate) nine_tenths: f64,
    pub(crate) max: f64,
    pub(crate) count: usize,
}

impl Spread {
    /// The spread of `figures`; all zero if there are none.
    pub(crate) fn of(figures: &[f64]) -> Self {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = share * (sorted.len().saturating_sub(1)) as f64;
            let below = sorted.get(place.floor() as usize).copied().unwrap_or(0.0);
            let above = sorted.get(place.ceil() as usize).copied().unwrap_or(0.0);
            below + (above - below) * place.fract()
        };
        Self {
            min: at(0.0),
            tenth: at(0.1),
            quarter: at(0.25),
            median: at(0.5),
            three_quarters: at(0.75),
            nine_tenths: at(0.9),
            max: at(1.0),
            count: sorted.len(),
        }
    }

    /// The spread of a figure of each round.
    pub(crate) fn over<T>(rounds: &[T], figure: impl Fn(&T) -> f64) -> Self {
        Self::of(&rounds.iter().map(figure).collect::<Vec<_>>())
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "min": self.min, "tenth": self.tenth, "quarter": self.quarter, "median": self.median,
            "three_quarters": self.three_quarters, "nine_tenths": self.nine_tenths, "max": self.max, "count": self.count,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_of_five_figures_is_those_figures() {
        let spread = Spread::of(&[5.0, 1.0, 4.0, 2.0, 3.0]);
        let found = [spread.min, spread.quarter, spread.median, spread.three_quarters, spread.max];
        assert_eq!(found, [1.0, 2.0, 3.0, 4.0, 5.0]);
    }

    #[test]
    fn the_median_of_two_lies_between_them() {
        assert_eq!(Spread::of(&[1.0, 2.0]).median, 1.5);
        assert_eq!(Spread::of(&[]).median, 0.0);
    }
}
