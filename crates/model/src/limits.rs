//! What a thread may use, what it has used, and the ceiling that it reached first.
//!
//! Turns, tokens, spawns and running time count from the last word of a user, through handoffs, decisions and resumes without a
//! message; money counts over the whole account. All of it is folded from the log, so that a restart forgets nothing.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::money::{self, Money};

/// Ceilings of a thread; an absent one is not set here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Model calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<u64>,
    /// Tokens in and out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Dollars.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "money::decimal::option")]
    pub spend: Option<Money>,
    /// Children started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spawns: Option<u64>,
    /// Levels of children below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u64>,
    /// Seconds of running time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_seconds: Option<u64>,
}

/// What has been used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// Model calls.
    #[serde(default)]
    pub turns: u64,
    /// Tokens sent.
    #[serde(default)]
    pub input_tokens: u64,
    /// Tokens received.
    #[serde(default)]
    pub output_tokens: u64,
    /// Dollars.
    #[serde(default, with = "money::decimal")]
    pub spend: Money,
    /// Of the dollars, those put down for calls of which nobody knows what they cost.
    #[serde(default, skip_serializing_if = "is_nothing", with = "money::decimal")]
    pub spend_unknown: Money,
    /// What evidence corrected that stands in another log of the same chain: taken off where both are added up.
    #[serde(default, skip_serializing_if = "Corrections::is_empty")]
    pub corrected: Corrections,
    /// Milliseconds of running time.
    #[serde(default)]
    pub duration_ms: u64,
}

/// What was put down for calls of which nobody knew what they cost, and what they really cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Corrections {
    /// What was put down.
    #[serde(with = "money::decimal")]
    pub from: Money,
    /// What it really was.
    #[serde(with = "money::decimal")]
    pub to: Money,
}

impl Corrections {
    /// Whether nothing was corrected.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Limits {
    /// These ceilings, and those of `lower` where nothing is said here.
    #[must_use]
    pub fn over(&self, lower: &Self) -> Self {
        Self {
            turns: self.turns.or(lower.turns),
            tokens: self.tokens.or(lower.tokens),
            spend: self.spend.or(lower.spend),
            spawns: self.spawns.or(lower.spawns),
            depth: self.depth.or(lower.depth),
            duration_seconds: self.duration_seconds.or(lower.duration_seconds),
        }
    }

    /// These ceilings for a child of a thread with the ceilings of `parent`: nowhere above them, and one level deeper. None if the
    /// parent may have no children.
    pub fn under(&self, parent: &Self) -> Option<Self> {
        let depth_left = match parent.depth {
            Some(depth) => Some(depth.checked_sub(1)?),
            None => None,
        };
        Some(Self {
            turns: least(self.turns, parent.turns),
            tokens: least(self.tokens, parent.tokens),
            spend: least(self.spend, parent.spend),
            spawns: least(self.spawns, parent.spawns),
            depth: least(self.depth, depth_left),
            duration_seconds: least(self.duration_seconds, parent.duration_seconds),
        })
    }

    /// Those of these ceilings that are lower than what was wished for; a child is always one level deeper.
    #[must_use]
    pub fn below(&self, wished: &Self) -> Self {
        fn lower<T: PartialOrd>(own: Option<T>, wished: Option<&T>) -> Option<T> {
            own.filter(|own| wished.is_some_and(|wished| own < wished))
        }
        Self {
            turns: lower(self.turns, wished.turns.as_ref()),
            tokens: lower(self.tokens, wished.tokens.as_ref()),
            spend: lower(self.spend, wished.spend.as_ref()),
            spawns: lower(self.spawns, wished.spawns.as_ref()),
            depth: None,
            duration_seconds: lower(self.duration_seconds, wished.duration_seconds.as_ref()),
        }
    }

    /// The first of these ceilings that lies above what a child of a thread with the ceilings of `parent` may have, and what the
    /// parent's would have to be. Money is not looked at: an account never gives more than it holds.
    pub fn beyond(&self, parent: &Self) -> Option<(&'static str, u64)> {
        let needs = |name, own: Option<u64>, parent: Option<u64>| {
            let parent = parent?;
            own.filter(|own| *own > parent).map(|own| (name, own))
        };
        let depth = self.depth.map(|depth| depth.saturating_add(1));
        needs("turns", self.turns, parent.turns)
            .or_else(|| needs("tokens", self.tokens, parent.tokens))
            .or_else(|| needs("spawns", self.spawns, parent.spawns))
            .or_else(|| needs("depth", depth, parent.depth))
            .or_else(|| needs("duration", self.duration_seconds, parent.duration_seconds))
    }

    /// The first ceiling that what was used has reached: nothing further may be begun.
    pub fn reached(&self, used: &Used) -> Option<Reached> {
        let Used { cost, .. } = used;
        let count = |code, current: u64, most: Option<u64>| {
            most.filter(|most| current >= *most).map(|most| Reached {
                code,
                current: current.into(),
                maximum: most.into(),
            })
        };
        let seconds = cost.duration_ms / 1000;
        count(TURNS_EXCEEDED, cost.turns, self.turns)
            .or_else(|| count(TOKENS_EXCEEDED, cost.tokens(), self.tokens))
            .or_else(|| {
                let most = self.spend.filter(|most| used.spend >= *most)?;
                Some(Reached { code: SPEND_EXCEEDED, current: used.spend.to_json(), maximum: most.to_json() })
            })
            .or_else(|| count(DURATION_EXCEEDED, seconds, self.duration_seconds))
    }

    /// The ceiling that keeps a thread that has used this much from starting another child.
    pub fn reached_by_children(&self, used: &Used) -> Option<Reached> {
        if let Some(most) = self.spawns.filter(|most| used.spawns >= *most) {
            return Some(Reached { code: SPAWNS_EXCEEDED, current: used.spawns.into(), maximum: most.into() });
        }
        (self.depth == Some(0)).then(|| Reached { code: DEPTH_EXCEEDED, current: 0.into(), maximum: 0.into() })
    }

    /// The first ceiling of `raised` that lies below the one here: a raise never lowers.
    pub fn lowered_by(&self, raised: &Self) -> Option<&'static str> {
        fn is_lower<T: PartialOrd>(now: Option<T>, raised: Option<T>) -> bool {
            raised.is_some_and(|raised| now.is_none_or(|now| raised < now))
        }
        match () {
            () if is_lower(self.turns, raised.turns) => Some("turns"),
            () if is_lower(self.tokens, raised.tokens) => Some("tokens"),
            () if is_lower(self.spend, raised.spend) => Some("spend"),
            () if is_lower(self.spawns, raised.spawns) => Some("spawns"),
            () if is_lower(self.depth, raised.depth) => Some("depth"),
            () if is_lower(self.duration_seconds, raised.duration_seconds) => Some("duration"),
            () => None,
        }
    }
}

fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// No further turn may be begun.
pub const TURNS_EXCEEDED: &str = "turns_exceeded";
/// No further token may be used.
pub const TOKENS_EXCEEDED: &str = "tokens_exceeded";
/// No further money may be spent.
pub const SPEND_EXCEEDED: &str = "spend_exceeded";
/// No further child may be started.
pub const SPAWNS_EXCEEDED: &str = "spawns_exceeded";
/// Children may not go deeper.
pub const DEPTH_EXCEEDED: &str = "depth_exceeded";
/// The running time is over.
pub const DURATION_EXCEEDED: &str = "duration_exceeded";

/// A ceiling that was reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Reached {
    /// Which one.
    pub code: &'static str,
    /// How far it had come.
    pub current: Value,
    /// How far it may come.
    pub maximum: Value,
}

/// What counts against ceilings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Since somebody last spoke to it.
    pub cost: Cost,
    /// Children started since then.
    pub spawns: u64,
    /// Money, since the thread began.
    pub spend: Money,
}

/// What a thread has used, as its log tells: kept by the fold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meter {
    /// By runs that ended since somebody last spoke.
    #[serde(default)]
    pub ended: Cost,
    /// By the turns of the active run.
    #[serde(default)]
    pub active: Cost,
    /// Children started since somebody last spoke.
    #[serde(default)]
    pub spawns: u64,
    /// Money spent since the thread began.
    #[serde(default, with = "money::decimal")]
    pub spend: Money,
}

impl Meter {
    /// What counts against ceilings now, when the active run has been running for this long.
    pub fn used(&self, running_ms: u64) -> Used {
        let mut cost = self.ended.clone();
        cost.add(&self.active);
        cost.duration_ms = self.ended.duration_ms.saturating_add(running_ms);
        Used { cost, spawns: self.spawns, spend: self.spend }
    }

    /// What counts on in a thread that takes over from one whose active run has been running for this long.
    #[must_use]
    pub fn carried(&self, running_ms: u64) -> Self {
        let ended = self.used(running_ms).cost;
        Self { ended, active: Cost::default(), spawns: self.spawns, spend: self.spend }
    }

    /// Somebody spoke: everything but money counts anew.
    pub fn heard(&mut self) {
        (self.ended, self.spawns) = (Cost::default(), 0);
    }

    /// A turn used this much.
    pub fn turn(&mut self, cost: &Cost) {
        self.active.add(cost);
        self.spend = self.spend.saturating_add(cost.spend);
    }

    /// So much of what was spent was found not to have been.
    pub fn returned(&mut self, money: Money) {
        self.spend = self.spend.saturating_sub(money);
    }

    /// A run ended that used this much in all.
    pub fn run_ended(&mut self, cost: &Cost) {
        // What no turn told of comes with the end of the run.
        let untold = cost.spend.saturating_sub(self.active.spend);
        self.spend = self.spend.saturating_add(untold);
        self.ended.add(cost);
        self.active = Cost::default();
    }
}

impl Cost {
    /// Tokens sent and received.
    pub fn tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// Whether there is anything to say of money.
    pub fn has_spent(&self) -> bool {
        !self.spend.is_zero() || !self.corrected.is_empty()
    }

    /// Adds another cost to this one; a sum that no longer fits stays at the greatest number.
    pub fn add(&mut self, other: &Self) {
        self.turns = self.turns.saturating_add(other.turns);
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.spend = self.spend.saturating_add(other.spend);
        self.spend_unknown = self.spend_unknown.saturating_add(other.spend_unknown);
        self.duration_ms = self.duration_ms.saturating_add(other.duration_ms);
        self.correct(other.corrected);
    }

    /// Takes off what was added before.
    pub fn remove(&mut self, added: &Self) {
        self.turns = self.turns.saturating_sub(added.turns);
        self.input_tokens = self.input_tokens.saturating_sub(added.input_tokens);
        self.output_tokens = self.output_tokens.saturating_sub(added.output_tokens);
        self.spend = self.spend.saturating_sub(added.spend);
        self.spend_unknown = self.spend_unknown.saturating_sub(added.spend_unknown);
        self.duration_ms = self.duration_ms.saturating_sub(added.duration_ms);
    }

    /// Whether nothing was used.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Takes in what evidence corrected. It is taken off as far as it is of what nobody knew here; what a call of an earlier thread of the
    /// chain cost waits until that one's cost is added.
    pub fn correct(&mut self, more: Corrections) {
        let from = self.corrected.from.saturating_add(more.from);
        let to = self.corrected.to.saturating_add(more.to);
        self.corrected = Corrections { from, to };
        if let Some(unknown) = self.spend_unknown.checked_sub(from) {
            self.spend_unknown = unknown;
            self.spend = self.spend.saturating_sub(from.saturating_sub(to));
            self.corrected = Corrections::default();
        }
    }
}

fn is_nothing(money: &Money) -> bool {
    money.is_zero()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn used(turns: u64, tokens: u64, spend: &str, duration_ms: u64) -> Used {
        let cost = Cost { turns, input_tokens: tokens, duration_ms, ..Cost::default() };
        Used { cost, spawns: 0, spend: spend.parse().unwrap() }
    }

    fn limits() -> Limits {
        Limits {
            turns: Some(5),
            tokens: Some(100),
            spend: Some("0.50".parse().unwrap()),
            spawns: Some(2),
            depth: Some(1),
            duration_seconds: Some(60),
        }
    }

    #[test]
    fn what_was_corrected_is_taken_off_where_the_lost_call_is_counted() {
        let money = |text: &str| text.parse::<Money>().unwrap();
        let lost = Cost { spend: money("0.7"), spend_unknown: money("0.5"), ..Cost::default() };
        let mut own = lost.clone();
        own.correct(Corrections { from: money("0.4"), to: money("0.1") });
        assert_eq!((own.spend, own.spend_unknown), (money("0.4"), money("0.1")));
        assert!(own.corrected.is_empty());

        // Said in the log of a later thread, it leaves what that one spent alone.
        let mut later = Cost { spend: money("0.2"), ..Cost::default() };
        later.correct(Corrections { from: money("0.5"), to: money("0.1") });
        assert_eq!((later.spend, later.corrected.from), (money("0.2"), money("0.5")));
        let mut chain = lost;
        chain.add(&later);
        assert_eq!((chain.spend, chain.spend_unknown), (money("0.5"), Money::ZERO));
        assert!(chain.corrected.is_empty());
    }

    #[test]
    fn a_ceiling_is_reached_at_its_bound_and_above_and_not_below() {
        let code = |used: Used| limits().reached(&used).map(|reached| reached.code);
        assert_eq!(code(used(4, 99, "0.499999999", 59_999)), None);
        for turns in [5, 6] {
            assert_eq!(code(used(turns, 0, "0", 0)), Some(TURNS_EXCEEDED));
        }
        for tokens in [100, 101] {
            assert_eq!(code(used(0, tokens, "0", 0)), Some(TOKENS_EXCEEDED));
        }
        for spend in ["0.5", "0.51"] {
            assert_eq!(code(used(0, 0, spend, 0)), Some(SPEND_EXCEEDED));
        }
        for duration in [60_000, 61_000] {
            assert_eq!(code(used(0, 0, "0", duration)), Some(DURATION_EXCEEDED));
        }
    }

    #[test]
    fn several_ceilings_are_named_in_one_order_and_with_their_values() {
        let reached = limits().reached(&used(9, 900, "9", 900_000)).unwrap();
        assert_eq!((reached.code, reached.current, reached.maximum), (TURNS_EXCEEDED, json!(9), json!(5)));
        let reached = limits().reached(&used(0, 0, "9", 900_000)).unwrap();
        assert_eq!((reached.code, reached.current, reached.maximum), (SPEND_EXCEEDED, json!(9.0), json!(0.5)));
        assert_eq!(Limits::default().reached(&used(9, 900, "9", 900_000)), None);
    }

    #[test]
    fn children_are_bounded_by_number_and_by_depth() {
        let after = |spawns| Used { spawns, ..Used::default() };
        let code = |limits: &Limits, spawns| limits.reached_by_children(&after(spawns)).map(|reached| reached.code);
        assert_eq!(
            (code(&limits(), 1), code(&limits(), 2), code(&limits(), 3)),
            (None, Some(SPAWNS_EXCEEDED), Some(SPAWNS_EXCEEDED))
        );
        let lowest = Limits { depth: Some(0), ..limits() };
        assert_eq!(code(&lowest, 0), Some(DEPTH_EXCEEDED));
    }

    #[test]
    fn a_child_has_no_higher_ceiling_than_its_parent_and_is_one_level_deeper() {
        let wide = Limits { turns: Some(50), depth: Some(9), spend: None, ..limits() };
        let child = wide.under(&limits()).unwrap();
        assert_eq!((child.turns, child.depth, child.spend), (Some(5), Some(0), limits().spend));
        assert_eq!(wide.under(&child), None);
        assert_eq!(limits().under(&Limits::default()), Some(limits()));
    }

    #[test]
    fn what_is_lower_than_was_wished_for_is_told() {
        let wished = Limits { turns: Some(9), tokens: Some(100), ..Limits::default() };
        assert_eq!(limits().below(&wished), Limits { turns: Some(5), ..Limits::default() });
        assert_eq!(limits().below(&Limits::default()), Limits::default());
    }

    #[test]
    fn what_is_said_later_wins_and_what_is_not_said_stays() {
        let over = Limits { turns: Some(7), ..Limits::default() }.over(&limits());
        assert_eq!((over.turns, over.tokens), (Some(7), Some(100)));
    }

    #[test]
    fn a_raise_never_lowers() {
        let raise = |turns| Limits { turns: Some(turns), ..Limits::default() };
        assert_eq!((limits().lowered_by(&raise(4)), limits().lowered_by(&raise(6))), (Some("turns"), None));
        // Without a ceiling every number is lower.
        assert_eq!(Limits::default().lowered_by(&raise(6)), Some("turns"));
    }

    #[test]
    fn a_child_has_no_ceiling_above_its_parent_s() {
        let parent = Limits { turns: Some(5), depth: Some(2), ..Limits::default() };
        let beyond = |own: Limits| own.beyond(&parent);
        assert_eq!(beyond(Limits { turns: Some(5), depth: Some(1), tokens: Some(9), ..Limits::default() }), None);
        assert_eq!(beyond(Limits { turns: Some(6), ..Limits::default() }), Some(("turns", 6)));
        assert_eq!(beyond(Limits { depth: Some(2), ..Limits::default() }), Some(("depth", 3)));
    }

    #[test]
    fn counting_starts_anew_when_somebody_speaks_except_for_money() {
        let turn = Cost { turns: 1, input_tokens: 10, spend: "0.1".parse().unwrap(), ..Cost::default() };
        let mut meter = Meter::default();
        meter.turn(&turn);
        meter.run_ended(&Cost { duration_ms: 500, ..turn.clone() });
        meter.turn(&turn);
        let now = meter.used(250);
        assert_eq!((now.cost.turns, now.cost.tokens(), now.cost.duration_ms), (2, 20, 750));
        assert_eq!(now.spend, "0.2".parse().unwrap());
        meter.heard();
        assert_eq!((meter.used(0).cost.turns, meter.used(0).spend), (1, "0.2".parse().unwrap()));
    }
}
