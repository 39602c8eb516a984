//! The page `BENCHMARKS.md`: the goals and whether they were met, then every figure, as a ratio wherever there is one.

use std::fmt::Write;

use crate::report::{Figure, Report, Section, Unit};

/// The goals of the project, and the figures that answer them.
const GOALS: [(&str, &[&str]); 17] = [
    (
        "one thread, warm: signed, durable commit of a message with an id, as the engine writes them, against bare append + fdatasync of the same bytes",
        &["warm_with_id_ratio"],
    ),
    ("one append by a fresh process: syncs; time, where a sync takes 0.2 ms", &["append_syncs", "append_process_ms"]),
    ("same against the Agents SDK's `add_items` (unsigned): how much faster", &["peer_session_ratio"]),
    (
        "commit at 3,000 messages against `SqliteSaver.put` at 3,000 messages: how much faster",
        &["peer_sqlite_long_ratio"],
    ),
    (
        "64 threads in one process against 64 unsigned bare loops; against `SqliteSaver.put` and `add_items` by 64 threads",
        &["crowd_ratio", "peer_crowd_64_sqlite_ratio", "peer_crowd_64_session_ratio"],
    ),
    (
        "10,000 live threads in one store: commits a second against 64 live threads; threads created a second, with a first message",
        &["live_10000_ratio", "live_created_per_second"],
    ),
    ("four processes of 16 threads: slowest process against the fastest", &["processes_ratio"]),
    (
        "per-commit cost at a late turn (10,000 unless said) against turn 100: time; processor time",
        &["history_ratio", "history_cpu_ratio"],
    ),
    (
        "durable turns a second through the engine, 64 threads, one tool call each; a late turn against turn 50",
        &["turns_64_per_second", "turns_late_ratio"],
    ),
    ("transcript bytes against payload; whole store after sync", &["bytes_transcript_ratio", "bytes_store_ratio"]),
    (
        "fresh process, 3,000 messages, loaded and checked: whole process; against the fastest peer's load alone",
        &["loading_process_ms", "peer_loading_ratio"],
    ),
    (
        "snapshots over 1,000 turns, of the time of a turn; loading from one against the log alone",
        &["snapshots_share", "snapshots_load_ratio"],
    ),
    ("a process that waits wakes up after another one's commit", &["wake_up_ms"]),
    ("start-up: open the store and show a 300-event thread", &["startup_process_ms"]),
    (
        "peak memory while an answer of 10 MiB is streamed: by a provider alone; by a whole run",
        &["stream_large_provider_mib", "stream_large_run_mib"],
    ),
    ("streamed answers open at once in one process of a thousand runs", &["stream_crowd_open"]),
    ("memory at 15,000 events", &["memory_peak_mib"]),
];

/// Writes the page.
pub(crate) fn page(report: &Report, machine: &str) -> String {
    let mut page = String::from(INTRODUCTION);
    if report.plan.quick {
        page.push_str("\n**A quick run: few and short rounds. A quick check, not a figure.**\n");
    }
    page.push_str("\n## Where\n\n");
    for line in machine.lines() {
        page.push_str(&format!("- {line}\n"));
    }
    for what in &report.skipped {
        page.push_str(&format!("- **Skipped**: {what}\n"));
    }
    goals(&mut page, report);
    for section in report.sections.iter().filter(|section| !section.rows.is_empty()) {
        table(&mut page, section);
    }
    page.push_str("\n## How\n\n");
    for method in &report.methods {
        let (name, how) = method.split_once(": ").unwrap_or(("", method));
        let _ = writeln!(page, "- **{name}**: {how}.");
    }
    page
}

const INTRODUCTION: &str = "# Benchmarks

Written by `cargo xtask bench --publish`; run it on your machine and this page is about your machine. A disk's sync is not the same from one
minute to the next, so nothing here is a figure of its own: what is compared was measured in one run, round by round in turns, and each
latency is also given as a multiple of a bare append + fdatasync measured right before its section (*× sync*). A figure is the median of its repetitions, its
spread p10–p90 with their number. Where there is one repetition, there is no spread.
";

fn goals(page: &mut String, report: &Report) {
    page.push_str("\n## Goals\n\n| what | goal | measured | p10–p90 (n) | |\n|---|---|---|---|---|\n");
    let find = |key: &str| report.sections.iter().flat_map(|section| &section.rows).find(|row| row.key == key);
    for (what, keys) in GOALS {
        let mut cells: [Vec<String>; 4] = Default::default();
        for key in keys {
            let Some(row) = find(key) else {
                cells.iter_mut().for_each(|cell| cell.push("–".to_owned()));
                cells[3].pop();
                cells[3].push("not measured".to_owned());
                continue;
            };
            let (goal, met) = row.goal.judge(row.unit, row.spread.median).unwrap_or_default();
            cells[0].push(goal);
            cells[1].push(row.unit.show(row.spread.median));
            cells[2].push(spread(row));
            cells[3].push(if met { "met" } else { "**missed**" }.to_owned());
        }
        // Figures without a spread have nothing to show.
        cells[2].retain(|spread| !spread.is_empty());
        let cells = cells.map(|cell| cell.join("; "));
        let _ = writeln!(page, "| {what} | {} |", cells.join(" | "));
    }
}

fn table(page: &mut String, section: &Section) {
    let sync = &section.sync;
    let _ = write!(
        page,
        "\n## {}\n\nBare sync right before: {:.0} µs (p10–p90 {:.0}–{:.0}, n {}).\n\n| what | median | × sync | p10–p90 (n) |\n|---|---|---|---|\n",
        section.title, sync.median, sync.tenth, sync.nine_tenths, sync.count
    );
    for row in &section.rows {
        let syncs = match row.unit {
            Unit::Micros => Unit::Times.show(row.spread.median / sync.median),
            Unit::Millis => Unit::Times.show(row.spread.median * 1e3 / sync.median),
            _ => String::new(),
        };
        // A figure that belongs to the one above it is indented.
        let what = match row.what.strip_prefix("  ") {
            Some(what) => format!("· {what}"),
            None => row.what.clone(),
        };
        let _ = writeln!(page, "| {what} | {} | {syncs} | {} |", row.unit.show(row.spread.median), spread(row));
    }
}

fn spread(row: &Figure) -> String {
    match row.spread.count {
        0 | 1 => String::new(),
        count => format!("{}–{} ({count})", row.unit.show(row.spread.tenth), row.unit.show(row.spread.nine_tenths)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_goal_is_answered_by_a_figure_that_some_measurement_makes() {
        let sources = [
            include_str!("warm.rs"),
            include_str!("append.rs"),
            include_str!("history.rs"),
            include_str!("processes.rs"),
            include_str!("turns.rs"),
            include_str!("bytes.rs"),
            include_str!("loading.rs"),
            include_str!("snapshots.rs"),
            include_str!("chains.rs"),
            include_str!("startup.rs"),
            include_str!("memory.rs"),
        ]
        .concat();
        // The names that are composed while measuring.
        let made = [
            "peer_session_ratio",
            "peer_sqlite_long_ratio",
            "crowd_ratio",
            "live_10000_ratio",
            "live_created_per_second",
            "turns_64_per_second",
            "peer_crowd_64_sqlite_ratio",
            "peer_crowd_64_session_ratio",
            "peer_loading_ratio",
            "stream_large_provider_mib",
            "stream_large_run_mib",
            "stream_crowd_open",
        ];
        for key in GOALS.iter().flat_map(|(_, keys)| keys.iter()) {
            assert!(made.contains(key) || sources.contains(&format!("\"{key}\"")), "no measurement has `{key}`");
        }
    }
}
