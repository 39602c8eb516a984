//! `selvedge usage`: what runs used.

use selvedge_model::{Cancel, Timestamp};
use selvedge_store::Backend;
use selvedge_store::usage::{Group, GroupUsage, UsageSummary, Used};
use selvedge_store_local::Access;
use serde::Serialize;
use serde_json::{Value, json};

use crate::context::{Context, User};
use crate::error::Result;
use crate::output::table;
use crate::text::{clean, count, grouped, local_day};

/// Show what runs used: tokens, money, time
///
/// Adds up the records of .ai/usage.jsonl, one for each time a run ended or was suspended, failed runs included. Records of runs that ended
/// meanwhile are added first. Titles that the system made are booked to the agent `_system`. The records are derived from the logs and
/// decide nothing; budgets are in the ledger, which `selvedge budget` shows.
///
/// The columns CACHE READ and CACHE WRITTEN are parts of the tokens sent. Days are those of the local time zone.
///
/// JSON: {"by", "since", "groups":[{"name", "runs", "turns", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "spend"
/// in dollars, "spend_unknown" (the part that was charged at a bound), "duration_ms"}], "total"}.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to group by
    #[arg(long, value_enum, default_value_t = By::Day)]
    by: By,
    /// Only runs that ended since then: 30m, 12h, 7d, 2w, a day such as 2026-11-18, or a timestamp
    #[arg(long, value_name = "WHEN", value_parser = super::search::parse_since)]
    since: Option<Timestamp>,
    /// Write CSV
    #[arg(long)]
    csv: bool,
}

#[derive(Clone, Copy, Debug, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
enum By {
    Agent,
    Model,
    Thread,
    Day,
}

impl By {
    fn group(self) -> (Group, &'static str) {
        match self {
            Self::Agent => (Group::Agent, "AGENT"),
            Self::Model => (Group::Model, "MODEL"),
            Self::Thread => (Group::Thread, "THREAD"),
            Self::Day => (Group::Day, "DAY"),
        }
    }
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let (group, header) = args.by.group();
    let mut summary = UsageSummary::new(group, local_day);
    let mut add = |store: &dyn Backend| {
        store.each_usage(&mut |record| {
            if args.since.is_none_or(|since| record.timestamp >= since) {
                summary.add(&record);
            }
        })
    };
    if User::find()?.signer().is_ok() {
        let store = context.open(Access::ReadWrite)?;
        let recorded = store.record_usage(&Cancel::new());
        let read = add(&*store);
        context.close(store);
        read?;
        if let Err(error) = recorded {
            context.output.say(format!("runs that ended since the last record may be left out: {error}"));
        }
    } else {
        let store = context.open(Access::ReadOnly)?;
        add(&*store)?;
        context
            .output
            .say("runs that ended since the last record are left out: without a signing key nothing can be added");
    }
    if context.output.is_json() {
        let groups: Vec<Value> = summary.groups.iter().map(|(name, used)| named(name, used)).collect();
        let total = &summary.total;
        return context.output.record(&json!({"by": args.by, "since": args.since, "groups": groups, "total": total}));
    }
    if args.csv {
        return context.output.text(csv(&header.to_lowercase(), &summary.groups));
    }
    if summary.groups.is_empty() {
        context.output.tell("no runs");
        return Ok(());
    }
    let mut rows: Vec<Vec<String>> = summary.groups.iter().map(|(name, used)| row(name, used)).collect();
    if rows.len() > 1 {
        rows.push(row("total", &summary.total));
    }
    let headers = [header, "RUNS", "TURNS", "SENT", "RECEIVED", "CACHE READ", "CACHE WRITTEN", "SPENT", "TIME"];
    context.output.text(table(&headers, &[1, 2, 3, 4, 5, 6, 7, 8], rows))?;
    let unknown = summary.total.used.spend_unknown;
    if !unknown.is_zero() {
        context.output.tell(format!("${unknown} of it is for calls without reported usage, charged at their bound"));
    }
    let system = summary.groups.get(selvedge_store::usage::SYSTEM).map_or(0, |system| system.used.turns);
    if system > 0 {
        context.output.tell(format!("_system made titles with {}", count(system, "call")));
    }
    Ok(())
}

fn named(name: &str, used: &GroupUsage) -> Value {
    let mut shown = json!(used);
    shown["name"] = json!(name);
    shown
}

fn row(name: &str, group: &GroupUsage) -> Vec<String> {
    let Used { turns, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, spend, duration_ms, .. } =
        &group.used;
    let numbers = [group.runs, *turns, *input_tokens, *output_tokens, *cache_read_tokens, *cache_write_tokens];
    let mut row = vec![clean(name)];
    row.extend(numbers.map(grouped));
    row.extend([format!("${spend}"), format!("{:.1} s", *duration_ms as f64 / 1000.0)]);
    row
}

/// The groups as CSV, as RFC 4180 has it.
fn csv<'a>(header: &str, groups: impl IntoIterator<Item = (&'a String, &'a GroupUsage)>) -> String {
    let mut lines = vec![format!(
        "{header},runs,turns,input_tokens,output_tokens,cache_read_tokens,cache_write_tokens,spend,spend_unknown,duration_ms"
    )];
    for (name, GroupUsage { runs, used }) in groups {
        let Used { turns, input_tokens, output_tokens, .. } = used;
        let Used { cache_read_tokens, cache_write_tokens, spend, spend_unknown, duration_ms, .. } = used;
        lines.push(format!(
            "{},{runs},{turns},{input_tokens},{output_tokens},{cache_read_tokens},{cache_write_tokens},{spend},{spend_unknown},{duration_ms}",
            field(name)
        ));
    }
    lines.join("\n")
}

/// A field; one that a spreadsheet would take for a formula is quoted as text.
fn field(text: &str) -> String {
    let text = clean(text);
    let text = if text.starts_with(['=', '+', '-', '@']) { format!("'{text}") } else { text };
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}
