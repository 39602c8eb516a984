//! The report: a table for people, a file for programs, a page (see [`crate::publish`]).
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this module prints the report")]

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::measure::Spread;
use crate::{Machine, Outcome, Plan, machine, publish};

/// The goal of a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    None,
    AtMost(f64),
    AtLeast(f64),
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Times,
    /// How long something took.
    Micros,
    /// The lifetime of a process, or a part of it.
    Millis,
    /// Processor time, in microseconds.
    Cpu,
    Mebibytes,
    PerSecond,
    Count,
    /// A share of a whole.
    Share,
}

impl Unit {
    pub(crate) fn show(self, figure: f64) -> String {
        match self {
            Self::Times if figure >= 100.0 => format!("{figure:.0}×"),
            Self::Times => format!("{figure:.2}×"),
            Self::Micros | Self::Cpu => format!("{figure:.0} µs"),
            Self::Share => format!("{:.1} %", figure * 100.0),
            Self::Millis => format!("{figure:.1} ms"),
            Self::Mebibytes => format!("{figure:.1} MiB"),
            Self::PerSecond => format!("{figure:.0} /s"),
            Self::Count => format!("{figure:.0}"),
        }
    }
}

/// One figure.
pub(crate) struct Figure {
    pub(crate) key: String,
    pub(crate) what: String,
    pub(crate) unit: Unit,
    pub(crate) spread: Spread,
    pub(crate) goal: Goal,
}

impl Figure {
    fn cells(&self) -> [String; 4] {
        let unit = self.unit;
        let spread = &self.spread;
        let shown = match spread.count {
            0 | 1 => String::new(),
            count => {
                let ends = [spread.min, spread.quarter, spread.three_quarters, spread.max].map(|end| unit.show(end));
                format!("{} [{} – {}] {} (n {count})", ends[0], ends[1], ends[2], ends[3])
            }
        };
        [self.what.clone(), unit.show(spread.median), judged(unit, spread.median, self.goal), shown]
    }
}

/// Figures that belong together.
pub(crate) struct Section {
    pub(crate) title: String,
    /// The bare sync right before, in microseconds.
    pub(crate) sync: Spread,
    pub(crate) rows: Vec<Figure>,
}

/// All results.
pub(crate) struct Report {
    machine: Machine,
    pub(crate) plan: Plan,
    pub(crate) sections: Vec<Section>,
    pub(crate) methods: Vec<String>,
    pub(crate) skipped: Vec<String>,
    numbers: Map<String, Value>,
}

impl Report {
    pub(crate) fn new(machine: Machine, plan: Plan) -> Self {
        Self { machine, plan, sections: Vec::new(), methods: Vec::new(), skipped: Vec::new(), numbers: Map::new() }
    }

    /// The bare sync at the beginning of the run, in microseconds.
    pub(crate) fn sync(&self) -> f64 {
        self.machine.sync().median
    }

    /// The bare sync right before this section, in microseconds.
    pub(crate) fn section_sync(&self) -> f64 {
        self.sections.last().map_or_else(|| self.sync(), |section| section.sync.median)
    }

    /// Begins a section; measures the disk for it.
    pub(crate) fn section(&mut self, title: &str, folder: &Path) -> Outcome<()> {
        let sync = machine::sync(folder)?;
        self.numbers.insert(format!("sync_us: {title}"), sync.json());
        self.sections.push(Section { title: title.to_owned(), sync, rows: Vec::new() });
        Ok(())
    }

    /// Prints that something is not measured.
    pub(crate) fn skip(&mut self, what: &str, why: &str) {
        eprintln!("\n!! {what} SKIPPED: {why}\n");
        self.skipped.push(format!("{what}: {why}"));
    }

    /// Describes in one line how the following figures were measured.
    pub(crate) fn method(&mut self, name: &str, method: String) {
        self.methods.push(format!("{name}: {method}"));
    }

    /// Adds a figure: the median of a spread.
    pub(crate) fn figure(&mut self, key: &str, what: &str, unit: Unit, spread: &Spread, goal: Goal) {
        let key = key.to_owned();
        let what = what.to_owned();
        self.numbers.insert(key.clone(), spread.json());
        if let Some(section) = self.sections.last_mut() {
            section.rows.push(Figure { key, what, unit, spread: *spread, goal });
        }
    }

    /// Adds a number that only the file has.
    pub(crate) fn number(&mut self, key: &str, value: Value) {
        self.numbers.insert(key.to_owned(), value);
    }

    /// The figures that miss their goals.
    pub(crate) fn missed(&self) -> Vec<String> {
        let rows = self.sections.iter().flat_map(|section| &section.rows);
        let judged = rows.filter_map(|row| Some((row, row.goal.judge(row.unit, row.spread.median)?)));
        let missed = judged.filter(|(_, (_, met))| !met);
        missed
            .map(|(row, (goal, _))| format!("{} is {}, not {goal}", row.what.trim(), row.unit.show(row.spread.median)))
            .collect()
    }

    /// Prints and writes everything.
    pub(crate) fn finish(self, folder: &Path, file: Option<&Path>, publish: Option<&Path>) -> Outcome<()> {
        let (machine, machine_json) = self.machine.lines(folder)?;
        let headings = ["what", "figure", "goal", "spread: min [quartiles] max"];
        let cells: Vec<[String; 4]> =
            self.sections.iter().flat_map(|section| &section.rows).map(Figure::cells).collect();
        let cells: Vec<[&str; 4]> =
            cells.iter().map(|row| [&row[0], &row[1], &row[2], &row[3]].map(String::as_str)).collect();
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
        for row in &cells {
            println!("{}", line(row).trim_end());
        }
        println!();
        for method in &self.methods {
            println!("{method}");
        }
        for what in &self.skipped {
            println!("SKIPPED: {what}");
        }
        if self.plan.quick {
            println!(
                "--quick: few and short rounds, and turn {} for the late one; a quick check, not a figure",
                self.plan.late_turn
            );
        }
        if let Some(page) = publish {
            std::fs::write(page, publish::page(&self, &machine))?;
            eprintln!("wrote {}", page.display());
        }
        if let Some(file) = file {
            let value = json!({
                "machine": machine_json, "quick": self.plan.quick, "skipped": self.skipped, "message_ids": self.plan.ids, "methods": self.methods,
                "numbers": self.numbers,
            });
            std::fs::write(file, serde_json::to_string_pretty(&value)? + "\n")?;
        }
        Ok(())
    }
}

impl Goal {
    /// The goal in words, and whether a figure meets it.
    pub(crate) fn judge(self, unit: Unit, figure: f64) -> Option<(String, bool)> {
        let (sign, goal, met) = match self {
            Self::None => return None,
            Self::AtMost(most) => ("≤", most, figure <= most),
            Self::AtLeast(least) => ("≥", least, figure >= least),
        };
        Some((format!("{sign} {}", unit.show(goal)), met))
    }
}

fn judged(unit: Unit, figure: f64, goal: Goal) -> String {
    let Some((goal, met)) = goal.judge(unit, figure) else { return String::new() };
    format!("{goal}{}", if met { "" } else { " missed" })
}

/// Prints what is being measured.
pub(crate) fn progress(name: &str) {
    eprintln!("measuring {name} …");
}

/// Prints why nothing could be measured.
pub(crate) fn complain(why: &str) {
    eprintln!("error: {why}");
}
