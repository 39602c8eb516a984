//! `selvedge budget`: what a tree of threads may spend, has spent and has reserved; and its verification from the signed logs.

use std::collections::BTreeSet;

use selvedge::needs::{self, Need};
use selvedge_engine::Error;
use selvedge_engine::ledger;
use selvedge_engine::ledger::audit::{self, AccountTree, Audit, Branch, Cause, Found, Unavailable};
use selvedge_model::account::replay::AccountFlaw;
use selvedge_model::account::{Account, AccountId, AccountStatus, PostingError, Reservation, ReservationState};
use selvedge_model::id::ReservationId;
use selvedge_model::{Classify, Event, Money, ThreadId};
use selvedge_store::load::{each_changeset, load};
use selvedge_store::{Backend, Error as StoreError};
use selvedge_store_local::Access;
use selvedge_store_local::system::SystemIds;
use serde::Serialize;
use serde_json::json;

use crate::context::Context;
use crate::error::{Exit, Failure, Result};
use crate::needs::Shown as _;
use crate::output::{BAD, BOLD, DIM, GOOD, Output, WARN, paint};
use crate::text::{count, incomplete};

/// Show what a thread and its children may spend and have spent
///
/// An account belongs to a chain of threads. A child spends from an account of its own, whose money is reserved from its parent's. A
/// thread that never called a model with a price has no account. The bar shows what is spent (█), reserved (▒) and remaining (░). A
/// suspended child keeps the money that is reserved for it, and the account of a chain that has ended is closing until all of its
/// children have ended; the command that frees such money is shown. An account is incomplete while logs of its family are not in
/// this store, and after versions of a log were lost. Writes nothing.
///
/// With --verify, everything is computed again from the signed logs alone: every record is posted again in the order of its account's
/// versions, each ceiling is checked at every posting, and the result is compared with the database. Postings can't be computed again
/// if their log was deleted (a signed tombstone says so), if versions of it were lost (a signed event says so) or if it is not in this
/// store. They are listed; the verdict is then `incomplete`, which is not a failure, and says how many postings were checked.
///
/// A call whose provider did not report the usage, or whose answer was lost, is charged at its bound: the most it can have cost.
/// --correct records the real cost, with --evidence, and only downwards; the thread's log has both. This is possible after everything
/// has ended too: the difference is credited up the tree.
///
/// JSON: {"root", "accounts":[{"account", "parent", "depth", "status", "version", "incomplete", "incomplete_cause" ("not_in_store",
/// "lost" or null), "spent_here_nanos" (according to the signed logs of its threads), "threads":[ID…], "max_nanos" (null:
/// no limit), "own_nanos", "children_nanos", "reserved_nanos", "remaining_nanos", "reservations":[{"reservation", "amount_nanos",
/// "state", "child", "at_bound" (why a call was charged at its bound: "usage_not_reported", "answer_lost", or "usage_unknown" if the
/// logs can't be read; else null)}], "needs":{"thread_id", "reason", "code", "commands":[TEXT…]} (null if nothing is needed),
/// "unknown_calls":[{"thread_id", "call_id", "tool", "arguments", "dispatched_at", "probed", "commands":[TEXT…]}] (as of `selvedge
/// inbox`)}], "verified":{"logs", "verdict" ("holds", "incomplete" or "fails"), "holds" (null if incomplete), "postings" (posted
/// again), "postings_skipped" (read, but not posted again), "differences":[TEXT…], "unavailable":[TEXT…], "peaks":{ACCOUNT: NANOS}}}. Amounts are integers
/// in nano-dollars.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The thread: any unique prefix of its id or of its hex suffix
    thread: String,
    /// Compute everything again from the signed logs, and compare
    #[arg(long)]
    verify: bool,
    /// The real cost, in dollars, of a call that was charged at its bound
    #[arg(long, value_name = "RESERVATION=DOLLARS", requires = "evidence", conflicts_with = "verify", value_parser = correction)]
    correct: Option<(ReservationId, Money)>,
    /// How the real cost is known
    #[arg(long, value_name = "TEXT", requires = "correct")]
    evidence: Option<String>,
}

fn correction(text: &str) -> Result<(ReservationId, Money), String> {
    let (name, amount) = text.split_once('=').ok_or("write it as RESERVATION=DOLLARS")?;
    let name = ReservationId::new(name).map_err(|error| error.to_string())?;
    Ok((name, amount.parse().map_err(|error: selvedge_model::money::InvalidMoney| error.to_string())?))
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    if let (Some((reservation, amount)), Some(evidence)) = (&args.correct, &args.evidence) {
        return correct(&args.thread, reservation, *amount, evidence, context);
    }
    let store = context.open(Access::ReadOnly)?;
    let thread = store.resolve(&args.thread)?;
    let tree = audit::tree(&*store, &thread)?;
    let audit = if args.verify { Some(audited(&*store, &tree)?) } else { None };
    if context.output.is_json() {
        context.output.record(&BudgetReport::of(&tree, audit.as_ref(), &*store))?;
    } else {
        show(&thread, &*store, &tree, audit.as_ref(), context.output)?;
    }
    audit.map_or(Ok(()), |audit| judge(&thread, &tree, &audit))
}

/// The audit of the signed logs. An untrusted key is an error of its own, not a difference in the ledger.
fn audited(store: &dyn Backend, tree: &AccountTree) -> Result<Audit> {
    let audit = audit::audit(store, store.trust(), tree)?;
    for found in &audit.found {
        let Found::Log { thread, .. } = found else { continue };
        if let Err(error) = load(store, thread, store.trust(), None)
            && error.code() == "untrusted_key"
        {
            return Err(error.into());
        }
    }
    Ok(audit)
}

#[derive(Serialize)]
struct BudgetReport {
    root: Option<AccountId>,
    accounts: Vec<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<serde_json::Value>,
}

impl BudgetReport {
    fn of(tree: &AccountTree, audit: Option<&Audit>, store: &dyn Backend) -> Self {
        let account = |branch: &Branch| {
            let Branch { account, reservations, depth, threads, .. } = branch;
            let at_bound = at_bound(branch, store);
            let held = |held: &Reservation| {
                let why = at_bound.iter().find(|(other, _)| other.id == held.id);
                let why = why.map(|(_, why)| *why);
                json!({"reservation": held.id, "amount_nanos": held.amount, "state": held.state, "child": held.child, "at_bound": why})
            };
            json!({
                "account": account.id,
                "parent": account.parent,
                "depth": depth,
                "status": account.status,
                "version": account.version,
                "incomplete": account.incomplete,
                "incomplete_cause": cause(branch, store),
                "spent_here_nanos": spent_here(branch, store),
                "threads": threads,
                "max_nanos": account.max,
                "own_nanos": account.settled,
                "children_nanos": account.settled_children,
                "reserved_nanos": account.reserved,
                "remaining_nanos": account.remaining(),
                "reservations": reservations.iter().map(held).collect::<Vec<_>>(),
                "needs": need(branch, store).map(|need| json!({"thread_id": need.thread_id, "reason": need.reason, "code": need.code, "commands": need.commands})),
                "unknown_calls": unknown_calls(branch, store).iter().map(Need::unknown_call_json).collect::<Vec<_>>(),
            })
        };
        let verified = |audit: &Audit| {
            let peaks = audit.accounts.iter().map(|(id, history)| (id.to_string(), json!(history.peak)));
            let (verdict, holds) = if !audit.found.is_empty() {
                ("fails", Some(false))
            } else if audit.is_complete() {
                ("holds", Some(true))
            } else {
                ("incomplete", None)
            };
            json!({
                "logs": audit.logs,
                "verdict": verdict,
                "holds": holds,
                "postings": postings(audit),
                "postings_skipped": audit.unposted,
                "differences": audit.found.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "unavailable": audit.gone.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "peaks": peaks.collect::<serde_json::Map<_, _>>(),
            })
        };
        let accounts = tree.accounts.iter().map(account).collect();
        Self { root: tree.root.clone(), accounts, verified: audit.map(verified) }
    }
}

fn postings(audit: &Audit) -> u64 {
    audit.accounts.values().map(|history| history.postings).sum()
}

fn show(
    thread: &ThreadId,
    store: &dyn Backend,
    tree: &AccountTree,
    audit: Option<&Audit>,
    output: &Output,
) -> Result<()> {
    if tree.accounts.is_empty() {
        return output.text(format_args!("{thread} has no account: it called no model with a price"));
    }
    let own = store.get(thread)?.manifest.chain_root_id;
    for branch in &tree.accounts {
        line(branch, branch.account.id == own, store, output)?;
    }
    let Some(audit) = audit else { return Ok(()) };
    output.text("")?;
    for found in &audit.found {
        output.text(format_args!("{} {found}", paint(BAD, "✗")))?;
    }
    for gone in &audit.gone {
        output.text(format_args!("{} {gone}", paint(WARN, "·")))?;
    }
    output.text(verdict(audit))
}

/// What a verification shows, in a sentence. Only one that left nothing out gets a tick.
fn verdict(audit: &Audit) -> String {
    let logs = count(audit.logs as u64, "signed log");
    let posted = postings(audit);
    let all = count(posted + audit.unposted, "posting");
    if !audit.found.is_empty() {
        return format!("{all} in {logs} checked");
    }
    if audit.is_complete() {
        let held = "no ceiling was exceeded at any posting, and the database agrees";
        return format!("{} {all} in {logs}: {held}", paint(GOOD, "✓"));
    }
    let is_absent = audit.gone.iter().any(|gone| matches!(gone, Unavailable::NotInStore { .. }));
    let next = if is_absent { "; import the rest of the family" } else { "" };
    let incomplete = paint(WARN, "incomplete");
    let checked = match (posted, audit.unposted) {
        (0, _) => format!("none of {all} in {logs} could be checked, because earlier ones are missing"),
        (_, 0) => format!("no ceiling was exceeded at the {all} in {logs}, and others are missing"),
        (_, after) => format!(
            "no ceiling was exceeded at {posted} of {all} in {logs}; {after} after the missing ones could not be checked"
        ),
    };
    format!("{incomplete}: {checked}; nothing contradicts the database{next}")
}

/// How many characters a bar has.
const BAR: usize = 24;

fn line(branch: &Branch, is_own: bool, store: &dyn Backend, output: &Output) -> Result<()> {
    let Branch { account, reservations, depth, threads, .. } = branch;
    let indent = "  ".repeat(*depth);
    let name = if is_own { paint(BOLD, &account.id) } else { account.id.to_string() };
    let status = match account.status {
        AccountStatus::Active => String::new(),
        AccountStatus::Closing => paint(DIM, " closing"),
        AccountStatus::Closed => paint(DIM, " closed"),
    };
    output.text(format_args!("{indent}{name}{status}"))?;
    let of = match (account.remaining(), account.max) {
        (_, Some(max)) if account.used() > max => format!("stopped at ${max}: nothing more can be reserved"),
        (Some(left), Some(max)) => format!("${left} left of ${max}"),
        _ => "no limit".to_owned(),
    };
    let children = if account.settled_children.is_zero() {
        String::new()
    } else {
        format!(" (${} by children that have ended)", account.settled_children)
    };
    let held = match account.open {
        0 => String::new(),
        open => format!(", ${} reserved for {}", account.reserved, holders(open, reservations)),
    };
    let cause = cause(branch, store);
    output.text(match cause {
        None => format!("{indent}{} ${} spent{children}{held}, {of}", bar(account), account.spent()),
        // What other logs say of its limit is not known.
        Some(Cause::NotInStore) => {
            let here = spent_here(branch, store);
            format!("{indent}${here} spent by its threads in this store{held}; what is left of its limit is unknown")
        }
        Some(Cause::Lost) => {
            let counted = account.spent();
            format!("{indent}{} ${counted} counted as spent{children}{held}, {of}", bar(account))
        }
    })?;
    if let Some(cause) = cause {
        output.text(format_args!("{indent}{}", paint(WARN, incomplete(cause))))?;
    }
    for (held, why) in at_bound(branch, store) {
        let why = why.replace('_', " ");
        let text = format!("${} for a model call: {why}, charged at its bound ({})", held.amount, held.id);
        output.text(format_args!("{indent}{}", paint(WARN, text)))?;
    }
    if let Some(need) = need(branch, store).filter(|_| account.parent.is_some()) {
        output.text(format_args!("{indent}{}", paint(WARN, need.sentence())))?;
    }
    for line in unknown_calls(branch, store).iter().flat_map(Need::unknown_call) {
        output.text(format_args!("{indent}{}", paint(WARN, line)))?;
    }
    if threads.len() > 1 {
        let chain: Vec<_> = threads.iter().map(ToString::to_string).collect();
        output.text(format_args!("{indent}{}", paint(DIM, chain.join(" → "))))?;
    }
    Ok(())
}

/// Why an account is incomplete; what can't be found out is taken for a log that is not here.
fn cause(branch: &Branch, store: &dyn Backend) -> Option<Cause> {
    audit::cause(store, &branch.account).unwrap_or(branch.account.incomplete.then_some(Cause::NotInStore))
}

/// What the threads of an account that are here have spent, by their signed logs.
fn spent_here(branch: &Branch, store: &dyn Backend) -> Money {
    let spent = |thread: &ThreadId| store.get(thread).map_or(Money::ZERO, |found| found.manifest.cost.spend);
    branch.threads.iter().map(spent).fold(Money::ZERO, Money::saturating_add)
}

/// The calls that were charged at their bound, each with the reason: the provider did not report the usage, the answer was lost, or the
/// logs can't be read.
fn at_bound<'b>(branch: &'b Branch, store: &dyn Backend) -> Vec<(&'b Reservation, &'static str)> {
    let unknown: Vec<_> = branch.reservations.iter().filter(|held| held.state == ReservationState::Unknown).collect();
    if unknown.is_empty() {
        return Vec::new();
    }
    let mut answered = BTreeSet::new();
    let is_read = branch.threads.iter().all(|thread| unreported(thread, store, &mut answered).is_ok());
    let why = |held: &Reservation| {
        if answered.contains(&held.id) {
            "usage_not_reported"
        } else if is_read {
            "answer_lost"
        } else {
            "usage_unknown"
        }
    };
    unknown.into_iter().map(|held| (held, why(held))).collect()
}

/// The calls of a thread that were answered without usage. Their answer is committed together with their settlement, which follows those
/// of earlier attempts.
fn unreported(
    thread: &ThreadId,
    store: &dyn Backend,
    found: &mut BTreeSet<ReservationId>,
) -> selvedge_store::Result<()> {
    each_changeset(store, thread, store.trust(), |entry| {
        let events = || entry.lines.iter().map(|line| &line.event);
        if events().any(|event| matches!(event, Event::Usage(used) if used.estimated)) {
            let settled = events().rev().filter_map(Event::posting).find(|(_, record)| record.unknown);
            found.extend(settled.and_then(|(_, record)| record.reservation.clone()));
        }
    })
    .map(|_| ())
}

/// What the end of an account's chain waits for, if it waits for a person and so keeps the account open.
fn need(branch: &Branch, store: &dyn Backend) -> Option<Need> {
    let end = branch.threads.last().filter(|_| branch.account.status != AccountStatus::Closed)?;
    // A thread that can't be read holds nothing that could be freed here.
    needs::need_of(store, &store.get(end).ok()?)
}

/// The calls at the end of an account's chain whose outcome is unknown.
fn unknown_calls(branch: &Branch, store: &dyn Backend) -> Vec<Need> {
    let end = branch.threads.last().and_then(|end| store.get(end).ok());
    end.map(|end| needs::unknown_calls(store, store.trust(), &end)).unwrap_or_default()
}

fn holders(open: u64, reservations: &[Reservation]) -> String {
    let for_children = reservations.iter().filter(|held| held.state != ReservationState::Unknown);
    let for_children: Vec<_> = for_children.filter_map(|held| held.child.as_ref()).collect();
    let calls = open.saturating_sub(for_children.len() as u64);
    // A child whose limit was raised has more than one reservation.
    let children = for_children.into_iter().collect::<BTreeSet<_>>().len() as u64;
    let child = |number: u64| if number == 1 { "1 child".to_owned() } else { format!("{number} children") };
    match (children, calls) {
        (0, calls) => count(calls, "call"),
        (children, 0) => child(children),
        (children, calls) => format!("{} and {}", child(children), count(calls, "call")),
    }
}

/// What is spent, reserved and left, as a bar; an account without a limit has nothing left.
fn bar(account: &Account) -> String {
    let whole = account.max.map_or(account.used(), |max| max.max(account.used())).nanos();
    let cells = |money: Money| match whole {
        0 => 0,
        whole => {
            let cells = i128::from(money.nanos()) * BAR as i128 / i128::from(whole);
            // Any amount above zero is visible.
            usize::try_from(cells).unwrap_or(BAR).max(usize::from(!money.is_zero()))
        }
    };
    let spent = cells(account.spent()).min(BAR);
    let held = cells(account.reserved).min(BAR - spent);
    format!(
        "{}{}{}",
        paint(GOOD, "█".repeat(spent)),
        paint(WARN, "▒".repeat(held)),
        paint(DIM, "░".repeat(BAR - spent - held))
    )
}

/// The result of a verification.
fn judge(thread: &ThreadId, tree: &AccountTree, audit: &Audit) -> Result<()> {
    let Some(first) = audit.found.first() else { return Ok(()) };
    let more = match audit.found.len() {
        1 => String::new(),
        number => format!(", and {} more", number - 1),
    };
    if audit.found.iter().any(Found::is_of_integrity) {
        let failure = Failure::new(Exit::Integrity, "ledger_differs", format!("{first}{more}"));
        let is_of_database = |found: &Found| matches!(found, Found::Database { .. }) || !found.is_of_integrity();
        let log = audit.found.iter().find_map(|found| match found {
            Found::Log { thread, .. } => Some(thread.as_str()),
            _ => None,
        });
        // The database is rebuilt from the logs, so they have to be complete.
        let hint = match (log, audit.found.iter().all(is_of_database)) {
            (None, true) => "`selvedge reindex` rebuilds the database from the logs".to_owned(),
            (log, _) => format!(
                "`selvedge verify {}` shows what is wrong with the log, and `selvedge repair {}` repairs it where possible; else restore a backup \
                 in another folder with `selvedge -C DIR restore BACKUP`, and copy the thread's folder from there",
                log.unwrap_or("--all"),
                log.unwrap_or("THREAD")
            ),
        };
        return Err(failure.hint(hint));
    }
    let failure = Failure::new(Exit::Limit, "ceiling_exceeded", format!("{first}{more}"));
    let log = crossed_in(tree, audit).unwrap_or(thread);
    Err(failure.hint(format!("a provider charged more than was reserved; `selvedge log {log}` shows the call")))
}

/// The thread whose log has the call that exceeded a ceiling. A child that exceeds its ceiling exceeds its parents' too.
fn crossed_in<'a>(tree: &AccountTree, audit: &'a Audit) -> Option<&'a ThreadId> {
    let depth =
        |id: &AccountId| tree.accounts.iter().find(|branch| branch.account.id == *id).map(|branch| branch.depth);
    let crossed = audit.found.iter().filter_map(|found| match found {
        Found::Records(AccountFlaw::Crossed { account, place: (thread, _), .. }) => Some((depth(account), thread)),
        _ => None,
    });
    crossed.max_by_key(|(depth, _)| *depth).map(|(_, thread)| thread)
}

/// Records the real cost of a call.
fn correct(
    thread: &str,
    reservation: &ReservationId,
    amount: Money,
    evidence: &str,
    context: &Context<'_>,
) -> Result<()> {
    let store = context.open(Access::ReadWrite)?;
    let thread = store.resolve(thread)?;
    let corrected = ledger::correct(&*store, &SystemIds, &thread, (reservation, amount), evidence)
        .map_err(|error| not_corrected(&*store, &thread, (reservation, amount), &error));
    context.close(store);
    let account = corrected?;
    let spent = account.spent();
    let account = account.id;
    if context.output.is_json() {
        return context.output.record(&json!({"account": account, "spent_nanos": spent}));
    }
    context.output.text(format_args!("account {account} has spent ${spent}"))
}

/// The failure of a refused correction. The reservation may be of a child, which the thread's own budget shows too.
fn not_corrected(
    store: &dyn Backend,
    thread: &ThreadId,
    (reservation, amount): (&ReservationId, Money),
    error: &Error,
) -> Failure {
    let failure = Failure::of(error);
    if !matches!(error, Error::Store(StoreError::Posting(PostingError::UnknownReservation { .. }))) {
        return failure;
    }
    let is_it = |branch: &&Branch| branch.reservations.iter().any(|held| held.id == *reservation);
    let tree = audit::tree(store, thread).unwrap_or_default();
    failure.hint(match tree.accounts.iter().find(is_it) {
        Some(Branch { account, threads, .. }) => format!(
            "the reservation is in account `{}`: `selvedge budget {} --correct {reservation}={amount} --evidence …`",
            account.id,
            threads.last().unwrap_or(&account.id)
        ),
        None => format!("`selvedge budget {thread}` lists the calls that were charged at their bound"),
    })
}
