//! The limits of a thread, its usage, and the first limit that was reached.
//!
//! Turns, tokens, spawns and running time count from the last message of a user, through handoffs, decisions and resumes without a
//! message; money counts over the whole account. All of it is folded from the log, so that a restart loses nothing.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::money::{self, Money};

/// The limits of a thread; an absent one is not set here.
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
    /// Levels of children below the thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u64>,
    /// Seconds of running time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_seconds: Option<u64>,
}

/// Usage.
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
    /// The part of `spend` that was settled at a bound because the actual cost is unknown.
    #[serde(default, skip_serializing_if = "is_nothing", with = "money::decimal")]
    pub spend_unknown: Money,
    /// Corrections of costs in another log of the same chain: subtracted where both are added up.
    #[serde(default, skip_serializing_if = "Corrections::is_empty")]
    pub corrected: Corrections,
    /// Milliseconds of running time.
    #[serde(default)]
    pub duration_ms: u64,
}

/// The bounds at which calls of unknown cost were settled, and their actual costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Corrections {
    /// The bounds.
    #[serde(with = "money::decimal")]
    pub from: Money,
    /// The actual costs.
    #[serde(with = "money::decimal")]
    pub to: Money,
}

impl Corrections {
    /// Whether nothing was corrected.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Parses a whole number; the error says whether it is invalid or too large.
pub fn whole(text: &str) -> Result<u64, String> {
    text.parse().map_err(|error: std::num::ParseIntError| match error.kind() {
        std::num::IntErrorKind::PosOverflow => format!("`{text}` is too large: at most {}", u64::MAX),
        _ => format!("`{text}` is not a whole number of at least 0"),
    })
}

impl Limits {
    /// The name of the first limit that is 0 and lets nothing run at all. A thread can run without children, or without money if its model
    /// is free.
    pub fn first_zero(&self) -> Option<&'static str> {
        let named = [("turns", self.turns), ("tokens", self.tokens), ("duration_seconds", self.duration_seconds)];
        named.into_iter().find_map(|(name, ceiling)| (ceiling == Some(0)).then_some(name))
    }

    /// These limits, and those of `lower` where none is set here.
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

    /// These limits for a child of a thread with the limits of `parent`: none above the parent's, and one level less depth. `None` if
    /// the parent may have no children.
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

    /// Those of these limits that are lower than the requested ones. Depth is left out, because a child always has one level less.
    #[must_use]
    pub fn below(&self, requested: &Self) -> Self {
        fn lower<T: PartialOrd>(own: Option<T>, requested: Option<&T>) -> Option<T> {
            own.filter(|own| requested.is_some_and(|requested| own < requested))
        }
        Self {
            turns: lower(self.turns, requested.turns.as_ref()),
            tokens: lower(self.tokens, requested.tokens.as_ref()),
            spend: lower(self.spend, requested.spend.as_ref()),
            spawns: lower(self.spawns, requested.spawns.as_ref()),
            depth: None,
            duration_seconds: lower(self.duration_seconds, requested.duration_seconds.as_ref()),
        }
    }

    /// The first of these limits that exceeds what a child of a thread with the limits of `parent` may have, and the value that the
    /// parent would need. Money is not checked: an account never gives more than it holds.
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

    /// The first limit that the usage has reached: nothing further may be started.
    pub fn reached(&self, used: &LimitUsage) -> Option<Reached> {
        let LimitUsage { cost, .. } = used;
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

    /// The limit that keeps a thread with this usage from starting another child.
    pub fn reached_by_children(&self, used: &LimitUsage) -> Option<Reached> {
        if let Some(most) = self.spawns.filter(|most| used.spawns >= *most) {
            return Some(Reached { code: SPAWNS_EXCEEDED, current: used.spawns.into(), maximum: most.into() });
        }
        (self.depth == Some(0)).then(|| Reached { code: DEPTH_EXCEEDED, current: 0.into(), maximum: 0.into() })
    }

    /// The name of the first limit of `raised` that is lower than the one here: a raise never lowers.
    pub fn lowered_by(&self, raised: &Self) -> Option<&'static str> {
        fn is_lower<T: PartialOrd>(now: Option<T>, raised: Option<T>) -> bool {
            raised.is_some_and(|raised| now.is_none_or(|now| raised < now))
        }
        if is_lower(self.turns, raised.turns) {
            Some("turns")
        } else if is_lower(self.tokens, raised.tokens) {
            Some("tokens")
        } else if is_lower(self.spend, raised.spend) {
            Some("spend")
        } else if is_lower(self.spawns, raised.spawns) {
            Some("spawns")
        } else if is_lower(self.depth, raised.depth) {
            Some("depth")
        } else if is_lower(self.duration_seconds, raised.duration_seconds) {
            Some("duration")
        } else {
            None
        }
    }
}

fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// No further turn may be started.
pub const TURNS_EXCEEDED: &str = "turns_exceeded";
/// No further token may be used.
pub const TOKENS_EXCEEDED: &str = "tokens_exceeded";
/// No further money may be spent.
pub const SPEND_EXCEEDED: &str = "spend_exceeded";
/// No further child may be started.
pub const SPAWNS_EXCEEDED: &str = "spawns_exceeded";
/// No deeper level of children may be started.
pub const DEPTH_EXCEEDED: &str = "depth_exceeded";
/// The running time is used up.
pub const DURATION_EXCEEDED: &str = "duration_exceeded";

/// A limit that was reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Reached {
    /// Which one.
    pub code: &'static str,
    /// The current value.
    pub current: Value,
    /// The limit.
    pub maximum: Value,
}

/// The usage that counts against limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitUsage {
    /// Since the last message of a user.
    pub cost: Cost,
    /// Children started since then.
    pub spawns: u64,
    /// Money, since the thread began.
    pub spend: Money,
}

/// The usage of a thread, kept by the fold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageMeter {
    /// By runs that ended since the last message of a user.
    #[serde(default)]
    pub ended: Cost,
    /// By the turns of the active run.
    #[serde(default)]
    pub active: Cost,
    /// Children started since the last message of a user.
    #[serde(default)]
    pub spawns: u64,
    /// Money spent since the thread began.
    #[serde(default, with = "money::decimal")]
    pub spend: Money,
}

impl UsageMeter {
    /// The usage that counts against limits now, if the active run has been running for `running_ms`.
    pub fn used(&self, running_ms: u64) -> LimitUsage {
        let mut cost = self.ended.clone();
        cost.add(&self.active);
        cost.duration_ms = self.ended.duration_ms.saturating_add(running_ms);
        LimitUsage { cost, spawns: self.spawns, spend: self.spend }
    }

    /// The meter of a successor of a thread whose active run has been running for `running_ms`.
    #[must_use]
    pub fn carried(&self, running_ms: u64) -> Self {
        let ended = self.used(running_ms).cost;
        Self { ended, active: Cost::default(), spawns: self.spawns, spend: self.spend }
    }

    /// A user sent a message: everything but money is counted anew.
    pub fn user_message(&mut self) {
        self.ended = Cost::default();
        self.spawns = 0;
    }

    /// Adds the usage of a turn.
    pub fn turn(&mut self, cost: &Cost) {
        self.active.add(cost);
        self.spend = self.spend.saturating_add(cost.spend);
    }

    /// Takes back money that evidence showed was not spent.
    pub fn returned(&mut self, money: Money) {
        self.spend = self.spend.saturating_sub(money);
    }

    /// Adds a run that ended with this total usage.
    pub fn run_ended(&mut self, cost: &Cost) {
        // The total may include money that no turn has reported.
        let unreported = cost.spend.saturating_sub(self.active.spend);
        self.spend = self.spend.saturating_add(unreported);
        self.ended.add(cost);
        self.active = Cost::default();
    }
}

impl Cost {
    /// Tokens sent and received.
    pub fn tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// Whether there is any spending or correction to report.
    pub fn has_spent(&self) -> bool {
        !self.spend.is_zero() || !self.corrected.is_empty()
    }

    /// Adds another cost to this one; a sum that overflows stays at the maximum.
    pub fn add(&mut self, other: &Self) {
        self.turns = self.turns.saturating_add(other.turns);
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.spend = self.spend.saturating_add(other.spend);
        self.spend_unknown = self.spend_unknown.saturating_add(other.spend_unknown);
        self.duration_ms = self.duration_ms.saturating_add(other.duration_ms);
        self.correct(other.corrected);
    }

    /// Subtracts a cost that was added before.
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

    /// Applies corrections. They are subtracted as far as they concern unknown costs recorded here; corrections of an earlier thread's
    /// calls are kept until that thread's cost is added.
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

    fn used(turns: u64, tokens: u64, spend: &str, duration_ms: u64) -> LimitUsage {
        let cost = Cost { turns, input_tokens: tokens, duration_ms, ..Cost::default() };
        LimitUsage { cost, spawns: 0, spend: spend.parse().unwrap() }
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
    fn a_correction_is_subtracted_where_the_lost_call_is_counted() {
        let money = |text: &str| text.parse::<Money>().unwrap();
        let lost = Cost { spend: money("0.7"), spend_unknown: money("0.5"), ..Cost::default() };
        let mut own = lost.clone();
        own.correct(Corrections { from: money("0.4"), to: money("0.1") });
        assert_eq!((own.spend, own.spend_unknown), (money("0.4"), money("0.1")));
        assert!(own.corrected.is_empty());

        // In the log of a later thread, the correction leaves that thread's own spending alone.
        let mut later = Cost { spend: money("0.2"), ..Cost::default() };
        later.correct(Corrections { from: money("0.5"), to: money("0.1") });
        assert_eq!((later.spend, later.corrected.from), (money("0.2"), money("0.5")));
        let mut chain = lost;
        chain.add(&later);
        assert_eq!((chain.spend, chain.spend_unknown), (money("0.5"), Money::ZERO));
        assert!(chain.corrected.is_empty());
    }

    #[test]
    fn a_limit_is_reached_at_its_value_and_above_but_not_below() {
        let code = |used: LimitUsage| limits().reached(&used).map(|reached| reached.code);
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
    fn several_reached_limits_are_reported_in_a_fixed_order_with_their_values() {
        let reached = limits().reached(&used(9, 900, "9", 900_000)).unwrap();
        assert_eq!((reached.code, reached.current, reached.maximum), (TURNS_EXCEEDED, json!(9), json!(5)));
        let reached = limits().reached(&used(0, 0, "9", 900_000)).unwrap();
        assert_eq!((reached.code, reached.current, reached.maximum), (SPEND_EXCEEDED, json!(9.0), json!(0.5)));
        assert_eq!(Limits::default().reached(&used(9, 900, "9", 900_000)), None);
    }

    #[test]
    fn children_are_bounded_by_number_and_by_depth() {
        let after = |spawns| LimitUsage { spawns, ..LimitUsage::default() };
        let code = |limits: &Limits, spawns| limits.reached_by_children(&after(spawns)).map(|reached| reached.code);
        assert_eq!(
            (code(&limits(), 1), code(&limits(), 2), code(&limits(), 3)),
            (None, Some(SPAWNS_EXCEEDED), Some(SPAWNS_EXCEEDED))
        );
        let lowest = Limits { depth: Some(0), ..limits() };
        assert_eq!(code(&lowest, 0), Some(DEPTH_EXCEEDED));
    }

    #[test]
    fn a_child_has_no_higher_limit_than_its_parent_and_one_level_less() {
        let wide = Limits { turns: Some(50), depth: Some(9), spend: None, ..limits() };
        let child = wide.under(&limits()).unwrap();
        assert_eq!((child.turns, child.depth, child.spend), (Some(5), Some(0), limits().spend));
        assert_eq!(wide.under(&child), None);
        assert_eq!(limits().under(&Limits::default()), Some(limits()));
    }

    #[test]
    fn limits_below_the_requested_ones_are_reported() {
        let requested = Limits { turns: Some(9), tokens: Some(100), ..Limits::default() };
        assert_eq!(limits().below(&requested), Limits { turns: Some(5), ..Limits::default() });
        assert_eq!(limits().below(&Limits::default()), Limits::default());
    }

    #[test]
    fn a_later_limit_wins_and_an_unset_one_stays() {
        let over = Limits { turns: Some(7), ..Limits::default() }.over(&limits());
        assert_eq!((over.turns, over.tokens), (Some(7), Some(100)));
    }

    #[test]
    fn a_raise_never_lowers() {
        let raise = |turns| Limits { turns: Some(turns), ..Limits::default() };
        assert_eq!((limits().lowered_by(&raise(4)), limits().lowered_by(&raise(6))), (Some("turns"), None));
        // Compared with no limit, every number is lower.
        assert_eq!(Limits::default().lowered_by(&raise(6)), Some("turns"));
    }

    #[test]
    fn a_child_s_limit_above_its_parent_s_is_reported() {
        let parent = Limits { turns: Some(5), depth: Some(2), ..Limits::default() };
        let beyond = |own: Limits| own.beyond(&parent);
        assert_eq!(beyond(Limits { turns: Some(5), depth: Some(1), tokens: Some(9), ..Limits::default() }), None);
        assert_eq!(beyond(Limits { turns: Some(6), ..Limits::default() }), Some(("turns", 6)));
        assert_eq!(beyond(Limits { depth: Some(2), ..Limits::default() }), Some(("depth", 3)));
    }

    #[test]
    fn a_user_message_resets_everything_but_money() {
        let turn = Cost { turns: 1, input_tokens: 10, spend: "0.1".parse().unwrap(), ..Cost::default() };
        let mut meter = UsageMeter::default();
        meter.turn(&turn);
        meter.run_ended(&Cost { duration_ms: 500, ..turn.clone() });
        meter.turn(&turn);
        let now = meter.used(250);
        assert_eq!((now.cost.turns, now.cost.tokens(), now.cost.duration_ms), (2, 20, 750));
        assert_eq!(now.spend, "0.2".parse().unwrap());
        meter.user_message();
        assert_eq!((meter.used(0).cost.turns, meter.used(0).spend), (1, "0.2".parse().unwrap()));
    }
}
