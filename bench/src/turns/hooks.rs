//! What hooks cost that don't match: the same turns with ten of them at every turn, and without.

use std::path::Path;
use std::sync::Arc;

use selvedge_engine::hooks::{Hook, HookCall, Hooks};
use selvedge_items::hook::{HookFile, resolve};
use selvedge_store_local::Access;
use serde_json::json;

use super::{agent, engine, fresh, round};
use crate::Outcome;
use crate::home::Home;
use crate::measure::{Spread, in_turns};
use crate::report::{Goal, Report, Unit};

/// The number of hooks.
const HOOKS: usize = 10;
/// The number of turns of a run.
const TURNS: usize = 200;

pub(super) fn measure(folder: &Path, rounds: usize, report: &mut Report) -> Outcome<()> {
    let home = Home::make(folder)?;
    let engine = engine(&home, Arc::new(home.open(Access::ReadWrite)?))?;
    let (_, plain) = agent::scripted(TURNS)?;
    let mut with = plain.clone();
    with.hooks = Arc::new(hooks()?);
    let run = |work| round(&engine, work, &fresh(&engine, work, 1)?, TURNS);
    run(&plain)?;
    run(&with)?;
    let found = in_turns(rounds, || run(&plain), |_| run(&with))?;
    let ratios: Vec<f64> = found.iter().map(|(without, with)| with / without).collect();
    let what = format!("turns with {HOOKS} hooks that don't match ÷ without, time");
    report.figure("turns_hooks_ratio", &what, Unit::Times, &Spread::of(&ratios), Goal::AtMost(1.05));
    Ok(())
}

/// Hooks at every turn whose conditions look at different values and never hold.
fn hooks() -> Outcome<Hooks> {
    let paths = ["cost.turns", "cost.spend", "cost.input_tokens", "inputs.a.b", "limits.turns"];
    let hook = |number: usize| {
        json!({
            "id": format!("hook_{number}"), "event": "after_step",
            "condition": {"path": paths[number % paths.len()], "op": "gt", "value": 1_000_000 + number},
            "action": {"primary": "execute", "item_type": "tool", "item_id": "look"},
        })
    };
    let file: HookFile = serde_json::from_value(json!({"hooks": (0..HOOKS).map(hook).collect::<Vec<_>>()}))?;
    let call =
        HookCall { tool: "look".to_owned(), arguments: json!({}), source: "tool look".to_owned(), is_knowledge: false };
    let list = resolve(Some(&file), None, None).into_iter();
    Ok(Hooks::new(list.map(|placed| Hook { placed, calls: vec![call.clone()] }).collect()))
}
