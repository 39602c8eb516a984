//! One turn of the model: the next attempt, what follows a failed one, and the record of an answer.

use std::time::Duration;

use selvedge_log::hash::sha256;
use selvedge_model::answer::{Answer, Usage};
use selvedge_model::event::TurnUsage;
use selvedge_model::limits::Cost;
use selvedge_model::message::Block;
use selvedge_model::{Classify, Event, Message, ModelError, Money, Reason, Role, Stop, Timestamp};
use serde_json::json;

use crate::answer_size::beginning;
use crate::approval;
use crate::decide::ending::{self, EndReason, Failed};
use crate::decide::hooks::{self, AfterError};
use crate::decide::money::{CostBound, HeldMoney, Settled, Spent};
use crate::decide::{Commit, Live, Look, Rules, Step, With, calls, context};
use crate::fold::Fold;
use crate::held::Delta;
use crate::run_config::{Permission, RunConfig};

/// A turn: the attempts to get one answer.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    /// When the first attempt was made.
    asked_at: Timestamp,
    /// The length of the prompt.
    prompt_bytes: usize,
    /// The session at the provider that is offered.
    pub(crate) session: Option<String>,
    /// The most tokens of the answer that are paid for.
    pub(crate) output_tokens_max: Option<u64>,
    /// The number of attempts, this one included.
    pub(crate) attempts: u32,
    /// The money held for this attempt.
    hold: Option<HeldMoney>,
    /// The settled cost, until it is on record.
    settled: Option<Settled>,
    /// The result of the attempt.
    reply: Option<Result<Box<Answer>, ModelError>>,
    /// The partial texts of earlier attempts that were cut off, with the number of the attempt.
    cut: Vec<(u32, String)>,
    /// What the log should say of earlier attempts: sessions that were refused.
    notes: Vec<String>,
    /// Whether the pause before the next attempt is over.
    pub(crate) is_rested: bool,
    /// The usage of all attempts.
    used: Used,
}

/// The usage of a turn, failed attempts included.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    usage: Usage,
    /// The input tokens of the last attempt, as its provider counts.
    last_input_tokens: u64,
    /// Whether the provider did not report usage.
    is_uncounted: bool,
    /// The settled cost of all attempts.
    spend: Money,
    /// The part of it that is not known but assumed.
    spend_unknown: Money,
}

impl Turn {
    fn new(fold: &Fold, live: &Live, rules: &Rules) -> Self {
        Self {
            asked_at: live.now,
            prompt_bytes: context::prompt_size(fold, rules),
            session: fold.session_of(&rules.model_name).map(str::to_owned),
            output_tokens_max: None,
            attempts: 1,
            hold: None,
            settled: None,
            reply: None,
            cut: Vec::new(),
            notes: Vec::new(),
            is_rested: false,
            used: Used::default(),
        }
    }

    /// The next attempt. After a refused session it is made without one: the log has everything that the session knew.
    fn next_attempt(&self) -> Self {
        let is_refused = matches!(self.reply, Some(Err(ModelError::SessionRefused { .. })));
        let session = self.session.clone().filter(|_| !is_refused);
        let mut next = self.clone();
        next.cut.extend(self.partial().map(|text| (self.attempts, text)));
        next.notes.extend(self.refused_session());
        Self { session, attempts: self.attempts + 1, hold: None, reply: None, is_rested: false, ..next }
    }

    /// Adds the result of the attempt.
    pub(super) fn take(&mut self, reply: Result<Box<Answer>, ModelError>) {
        let spent = match &reply {
            Ok(answer) => Spent::on(answer),
            Err(error) => Spent::by(error),
        };
        self.settled = self.hold.take().map(|hold| hold.settled(spent));
        self.used.pay(self.settled.as_ref());
        match &reply {
            Ok(answer) => {
                self.used.add(&answer.usage.unwrap_or_default());
                if answer.usage.is_none_or(|usage| usage.estimated) {
                    self.used.is_uncounted = true;
                    self.used.last_input_tokens = 0;
                }
            }
            Err(ModelError::Stopped { usage: Some(usage), .. } | ModelError::Cut { usage: Some(usage), .. }) => {
                self.used.add(usage);
            }
            Err(_) => {}
        }
        self.reply = Some(reply);
    }

    /// The partial text of an attempt that was cut off or stopped.
    fn partial(&self) -> Option<String> {
        let partial = match self.error()? {
            ModelError::Cut { partial, .. } | ModelError::Stopped { partial, .. } => partial,
            _ => return None,
        };
        let text = Message { content: partial.clone(), ..Message::text(Role::Assistant, "") }.plain_text();
        (!text.is_empty()).then(|| beginning(text))
    }

    /// The note that the provider refused the offered session, if it did.
    fn refused_session(&self) -> Option<String> {
        let Some(ModelError::SessionRefused { why }) = self.error() else { return None };
        Some(format!("session `{}` was refused: {why}", self.session.as_ref()?))
    }

    /// Whether the provider charged more than its bound.
    pub(super) fn is_overcharged(&self) -> bool {
        self.settled.as_ref().is_some_and(Settled::is_overcharged)
    }

    /// The answer, if it has come.
    pub(super) fn answer(&self) -> Option<&Answer> {
        self.reply.as_ref().and_then(|reply| reply.as_ref().ok()).map(|answer| &**answer)
    }

    /// Why the last attempt failed, if it did.
    pub(crate) fn error(&self) -> Option<&ModelError> {
        self.reply.as_ref().and_then(|reply| reply.as_ref().err())
    }

    /// The usage to record, so that no restart forgets it. If tokens are limited or paid for, the tokens of an answer without reported usage
    /// are estimated.
    fn usage(&self, fold: &Fold, live: &Live, rules: &Rules) -> TurnUsage {
        let mut used = self.used;
        let answer = self.answer();
        used.is_uncounted &= rules.is_paid() || ending::limits(fold, rules).tokens.is_some();
        if let Some(answer) = answer.filter(|answer| used.is_uncounted && answer.usage.is_none()) {
            let gauge = fold.gauge();
            let said = serde_json::to_string(&answer.content).map_or(0, |text| text.len());
            used.usage.input_tokens = used.usage.input_tokens.saturating_add(gauge.tokens(self.prompt_bytes));
            used.usage.output_tokens = used.usage.output_tokens.saturating_add(gauge.tokens_of_text(said));
        }
        let took = live.now.as_micros().saturating_sub(self.asked_at.as_micros()) / 1000;
        TurnUsage {
            model: rules.model_name.clone(),
            cost: Cost {
                turns: 1,
                input_tokens: used.usage.input_tokens,
                output_tokens: used.usage.output_tokens,
                spend: used.spend,
                spend_unknown: used.spend_unknown,
                duration_ms: u64::try_from(took).unwrap_or(0),
                ..Cost::default()
            },
            cache_read_tokens: used.usage.cache_read_tokens,
            cache_write_tokens: used.usage.cache_write_tokens,
            prompt_bytes: self.prompt_bytes as u64,
            prompt_tokens: used.last_input_tokens,
            estimated: used.is_uncounted,
            answered_by: answer.and_then(|answer| answer.model.clone()),
            provider_id: answer.and_then(|answer| answer.provider_id.clone()),
            charged: answer.and_then(|answer| answer.charged),
            session: answer.and_then(|answer| answer.session.clone()),
            // With the answer: a replay takes them from its record.
            notes: answer.map(|answer| [&*self.notes, &*answer.notes].concat()).unwrap_or_default(),
        }
    }
}

impl Used {
    fn pay(&mut self, settled: Option<&Settled>) {
        let Some(settled) = settled else { return };
        self.spend = self.spend.saturating_add(settled.amount);
        self.spend_unknown = self.spend_unknown.saturating_add(settled.unknown());
    }

    fn add(&mut self, usage: &Usage) {
        self.last_input_tokens = usage.input_tokens;
        self.usage.input_tokens = self.usage.input_tokens.saturating_add(usage.input_tokens);
        self.usage.output_tokens = self.usage.output_tokens.saturating_add(usage.output_tokens);
        self.usage.cache_read_tokens = self.usage.cache_read_tokens.saturating_add(usage.cache_read_tokens);
        self.usage.cache_write_tokens = self.usage.cache_write_tokens.saturating_add(usage.cache_write_tokens);
    }
}

/// What follows a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// Retry at once, without the provider's session: the log has everything that the session knew.
    WithoutSession,
    /// Retry after this long.
    After(Duration),
    /// A retry may help, but there were enough attempts, or the provider asks for a longer wait than is configured.
    Exhausted,
    /// A retry does not help.
    Never,
}

/// What follows attempt number `attempt`, counted from one, that failed with this error.
///
/// `spread` distributes the waits of threads that failed at the same time.
pub(crate) fn retry(rules: &RunConfig, error: &ModelError, attempt: u32, has_session: bool, spread: u64) -> Retry {
    let after = |asked| Retry::After(rules.retries.wait_after(attempt, asked, spread));
    match error {
        ModelError::SessionRefused { .. } if has_session => Retry::WithoutSession,
        error if !is_retryable(rules, error) => Retry::Never,
        _ if attempt >= rules.retries.attempts_max || !rules.hooks.has_built_in("retry_transient") => Retry::Exhausted,
        // An earlier attempt would be refused, too: a resume tries again when the provider allows it.
        error if error.retry_after().is_some_and(|asked| asked > rules.retries.wait_max) => Retry::Exhausted,
        ModelError::Cut { .. } => after(None),
        error => after(error.retry_after()),
    }
}

/// A number that differs between threads, turns and attempts, and is the same in a replay.
fn spread(fold: &Fold, attempt: u32) -> u64 {
    let head = &fold.head;
    let digest = sha256(format!("{}:{}:{attempt}", head.log_id, head.version).as_bytes());
    digest.0.iter().take(8).fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

/// Whether a retry may help: the configured classes override the provider's classification.
fn is_retryable(rules: &RunConfig, error: &ModelError) -> bool {
    let text = error.to_string().to_lowercase();
    let class = rules.classes.iter().find(|class| class.fits(error.status(), &text));
    class.map_or(error.retryable(), |class| class.class.is_retryable())
}

/// The step for the turn under way; none if there is no turn, or if nothing but the end can be committed.
pub(super) fn under_way(fold: &Fold, live: &Live, rules: &Rules) -> Option<Step> {
    let turn = live.turn.as_ref().filter(|_| live.failed.is_none())?;
    let error = match &turn.reply {
        // The possible cost is reserved.
        None => return Some(Step::Ask(Box::new(turn.clone()))),
        Some(Ok(_)) => return Some(answered(fold, live, rules, turn)),
        Some(Err(error)) => error,
    };
    if let Some(step) = hooks::under_way(fold, live, rules) {
        return Some(step);
    }
    let stopped = || ending::stopped(fold, live, rules);
    let spread = spread(fold, turn.attempts);
    let after = match hooks::error(fold, live, rules, turn, error, is_retryable(rules, error)) {
        AfterError::Step(step) => return Some(step),
        AfterError::Again { at_once: true } => Retry::After(Duration::ZERO),
        AfterError::Again { at_once: false } => {
            Retry::After(rules.retries.wait_after(turn.attempts, error.retry_after(), spread))
        }
        AfterError::Nothing => retry(rules, error, turn.attempts, turn.session.is_some(), spread),
    };
    let why = match after {
        _ if matches!(error, ModelError::Stopped { .. }) => stopped().unwrap_or(EndReason::Stopped(Stop::Cancelled)),
        // A successor begins with a shorter conversation.
        Retry::Never if matches!(error, ModelError::ContextTooLong { .. }) => match stopped() {
            Some(stopped) => stopped,
            None => return Some(context::too_long(fold, live, rules)),
        },
        Retry::Never => EndReason::Failed(Failed::of_model(error)),
        // A thread that is to stop is not suspended.
        Retry::Exhausted => stopped().unwrap_or_else(|| EndReason::Exhausted(Failed::of_model(error))),
        Retry::After(_) | Retry::WithoutSession if live.stop.is_some() => {
            stopped().unwrap_or(EndReason::Stopped(Stop::Cancelled))
        }
        Retry::After(pause) if !turn.is_rested => return Some(Step::Wait(Some(pause))),
        Retry::After(_) | Retry::WithoutSession => return Some(ask(fold, live, rules)),
    };
    Some(hooks::complete(fold, live, rules, why))
}

/// The next attempt to get an answer: the possible cost is reserved first.
pub(super) fn ask(fold: &Fold, live: &Live, rules: &Rules) -> Step {
    let mut turn = live.turn.as_ref().map_or_else(|| Turn::new(fold, live, rules), Turn::next_attempt);
    let Some(bid) = CostBound::of(fold, rules, turn.prompt_bytes) else {
        turn.output_tokens_max = rules.output_tokens_max;
        return Step::Ask(Box::new(turn));
    };
    let Some(account) = &live.account else { return Step::Look(Look::Account) };
    let before = turn.settled.take();
    match bid.reserve(live, account, before.as_ref()) {
        Ok((hold, tokens)) => {
            let mut delta = Delta::default();
            delta.postings.extend(before.map(|before| before.posting()));
            delta.postings.extend(hold.postings());
            turn.hold = Some(hold);
            turn.output_tokens_max = Some(tokens);
            let number = if live.turn.is_none() { live.turns + 1 } else { live.turns };
            let with = With::Attempt(Box::new(turn));
            Commit { turn: Some(number), with, ..Commit::of(live, Reason::Reserved, delta) }.step()
        }
        Err(shortage) => match ending::stopped(fold, live, rules) {
            Some(stopped) => ending::end(fold, live, rules, stopped),
            None => {
                let suspended = shortage.suspended.clone();
                hooks::hard_limit(fold, live, rules, &suspended, EndReason::Short(*shortage))
            }
        },
    }
}

/// Commits an answer.
fn answered(fold: &Fold, live: &Live, rules: &Rules, turn: &Turn) -> Step {
    let mut delta = Delta::default();
    add(&mut delta, fold, live, rules, turn);
    let is_overcharged = turn.is_overcharged();
    Commit { is_overcharged, ..Commit::of(live, Reason::AssistantTurnCommitted, delta) }.step()
}

/// Adds the result of a turn to a delta: its cost, its usage, and its answer, if there is one. Partial texts of attempts that were cut off
/// or stopped are kept as events and not as messages: they are never sent back.
pub(super) fn add(delta: &mut Delta, fold: &Fold, live: &Live, rules: &Rules, turn: &Turn) {
    delta.postings.extend(turn.settled.as_ref().map(Settled::posting));
    let replaced = turn.cut.iter().map(|(attempt, text)| json!({"text": text, "attempt": attempt}));
    let last = turn.partial().map(|text| json!({"text": text}));
    for partial in replaced.chain(last) {
        let fields = [("partial_cognition".to_owned(), partial)];
        delta.events.push(Event::ContextInjected(fields.into_iter().collect()));
    }
    delta.events.push(Event::Usage(turn.usage(fold, live, rules)));
    let Some(answer) = turn.answer() else { return };
    let message = Message { content: answer.content.clone(), ..Message::text(Role::Assistant, "") };
    delta.events.extend(asks(fold, live, rules, &message));
    delta.messages.push(message);
}

/// The approval requests for the calls of an answer. They are committed with the answer, so that the approver sees them, and can decide,
/// while the other calls of the turn still run.
fn asks(fold: &Fold, live: &Live, rules: &Rules, answer: &Message) -> Vec<Event> {
    let calls = answer.content.iter().filter_map(|block| match block {
        Block::ToolCall { id, name, arguments, .. } => Some((id, name, arguments)),
        _ => None,
    });
    // A call with malformed arguments is not made, so it needs no approval.
    let calls = calls.filter(|(_, _, arguments)| calls::malformed(arguments).is_none());
    let asks = calls.filter_map(|(id, name, arguments)| {
        let tool = rules.tool(name)?;
        let Permission::Ask(asking) = rules.permission(&**tool, arguments) else { return None };
        let open = fold.conversation.next_call(id, name, arguments.clone());
        let hash = approval::action_hash(&fold.head.log_id, &open, tool.spec());
        Some(Event::Asked(approval::ask(&asking, hash, &open, live.now)))
    });
    asks.collect()
}
