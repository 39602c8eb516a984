//! What is told: a table for people, a file for programs.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this is where the bench speaks")]

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::measure::Spread;
use crate::{Machine, Outcome, Plan};

/// What a figure should be, in the words of the proof issue.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    None,
    AtMost(f64),
    AtLeast(f64),
}

/// What a figure is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Times,
    Micros,
    Millis,
    Mebibytes,
    PerSecond,
}

impl Unit {
    fn show(self, figure: f64) -> String {
        match self {
            Self::Times => format!("{figure:.2}×"),
            Self::Micros => format!("{figure:.0} µs"),
            Self::Millis => format!("{figure:.1} ms"),
            Self::Mebibytes => format!("{figure:.1} MiB"),
            Self::PerSecond => format!("{figure:.0} /s"),
        }
    }
}

struct Row {
    what: String,
    figure: String,
    goal: String,
    spread: String,
}

/// Everything that was found.
pub(crate) struct Report {
    machine: Machine,
    plan: Plan,
    rows: Vec<Row>,
    methods: Vec<String>,
    numbers: Map<String, Value>,
}

impl Report {
    pub(crate) fn new(machine: Machine, plan: Plan) -> Self {
        Self { machine, plan, rows: Vec::new(), methods: Vec::new(), numbers: Map::new() }
    }

    /// The bare sync at the beginning of the run, in microseconds.
    pub(crate) fn sync(&self) -> f64 {
        self.machine.sync().median
    }

    /// Says in one line how the figures that follow were found.
    pub(crate) fn method(&mut self, name: &str, method: String) {
        self.methods.push(format!("{name}: {method}"));
    }

    /// Adds a figure: the median of a spread.
    pub(crate) fn figure(&mut self, key: &str, what: &str, unit: Unit, spread: &Spread, goal: Goal) {
        let shown = match spread.count {
            0 | 1 => String::new(),
            count => {
                let ends = [spread.min, spread.quarter, spread.three_quarters, spread.max].map(|end| unit.show(end));
                format!("{} [{} – {}] {} (n {count})", ends[0], ends[1], ends[2], ends[3])
            }
        };
        let figure = unit.show(spread.median);
        self.rows.push(Row { what: what.to_owned(), figure, goal: judged(unit, spread.median, goal), spread: shown });
        self.numbers.insert(key.to_owned(), spread.json());
    }

    /// Adds a number that only the file has.
    pub(crate) fn number(&mut self, key: &str, value: Value) {
        self.numbers.insert(key.to_owned(), value);
    }

    /// Tells everything.
    pub(crate) fn finish(self, folder: &Path, file: Option<&Path>) -> Outcome<()> {
        let (machine, machine_json) = self.machine.lines(folder)?;
        let headings = ["what", "figure", "goal", "spread: min [quartiles] max"];
        let cells: Vec<[&str; 4]> =
            self.rows.iter().map(|row| [&row.what, &row.figure, &row.goal, &row.spread].map(String::as_str)).collect();
        let width = |column: usize| {
            let all = cells.iter().chain([&headings]).map(|row| row[column].chars().count());
            all.max().unwrap_or(0)
        };
        let widths = [width(0), width(1), width(2)];
        let line = |row: &[&str; 4]| {
            format!(
                "{:<w0$}  {:>w1$}  {:<w2$}  {}",
                row[0],
                row[1],
                row[2],
                row[3],
                w0 = widths[0],
                w1 = widths[1],
                w2 = widths[2]
            )
        };
        println!("{machine}\n");
        println!("{}", line(&headings).trim_end());
        cells.iter().for_each(|row| println!("{}", line(row).trim_end()));
        println!();
        self.methods.iter().for_each(|method| println!("{method}"));
        if self.plan.quick {
            println!(
                "--quick: few and short rounds, and turn {} for the late one; a look, not a figure",
                self.plan.late_turn
            );
        }
        if let Some(file) = file {
            let value = json!({
                "machine": machine_json, "quick": self.plan.quick, "message_ids": self.plan.ids, "methods": self.methods,
                "numbers": self.numbers,
            });
            std::fs::write(file, serde_json::to_string_pretty(&value)? + "\n")?;
        }
        Ok(())
    }
}

fn judged(unit: Unit, figure: f64, goal: Goal) -> String {
    let (sign, goal, met) = match goal {
        Goal::None => return String::new(),
        Goal::AtMost(most) => ("≤", most, figure <= most),
        Goal::AtLeast(least) => ("≥", least, figure >= least),
    };
    format!("{sign} {}{}", unit.show(goal), if met { "" } else { " missed" })
}

/// Says what is being measured, for whoever waits.
pub(crate) fn progress(name: &str) {
    eprintln!("measuring {name} …");
}

/// Says why nothing could be measured.
pub(crate) fn complain(why: &str) {
    eprintln!("error: {why}");
}
