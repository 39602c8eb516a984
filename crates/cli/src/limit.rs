//! Limits on the command line: `turns=5`, `spend=0.50`.

use selvedge_model::limits::{Limits, whole};

/// Parses one limit, such as `turns=5`.
pub(crate) fn parse(text: &str) -> Result<Limits, String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE, such as `turns=5`")?;
    let number = || whole(value).map(Some);
    let mut limits = Limits::default();
    match name {
        "turns" => limits.turns = number()?,
        "tokens" => limits.tokens = number()?,
        "spend" => limits.spend = Some(value.parse().map_err(|error| format!("{error}"))?),
        "spawns" => limits.spawns = number()?,
        "depth" => limits.depth = number()?,
        "duration" | "duration_seconds" => limits.duration_seconds = number()?,
        _ => {
            return Err(format!("there is no limit `{name}`; there are turns, tokens, spend, spawns, depth, duration"));
        }
    }
    match limits.first_zero() {
        Some(_) => Err(format!("with {name}=0 nothing could run; the minimum is 1")),
        None => Ok(limits),
    }
}

/// Merges limits; a later one overrides an earlier one.
pub(crate) fn all(limits: &[Limits]) -> Limits {
    limits.iter().fold(Limits::default(), |before, limits| limits.over(&before))
}
