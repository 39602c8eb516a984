//! Which turn of a script answers a prompt: **the first whose `when` holds and that is not used up**.
//!
//! How often turns were used follows from the prompt: for each answer in it, in order, the turn that would have been chosen there counts as
//! used once more. That takes one pass over the messages, and without any `when` just a count.

use std::sync::Arc;

use selvedge_model::{Message, Role};
use serde_json::Value;

use super::prompt_view::{plain, results};
use super::script::{NumberCondition, Repeat, Script, TextCondition, Turn, When};

/// The turn that answers this conversation; none if the script has none left for it.
pub(super) fn turn<'s>(script: &'s Script, messages: &[Arc<Message>]) -> Option<&'s Turn> {
    if script.turns.iter().all(|turn| turn.when.is_none()) {
        let answers = messages.iter().filter(|message| message.role == Role::Assistant).count();
        return nth(&script.turns, answers as u64);
    }
    let mut replay =
        ConversationProgress { used: vec![0; script.turns.len()], turns: 0, user: None, results: Vec::new() };
    for message in messages {
        match message.role {
            Role::User => replay.user = Some(message),
            Role::Tool => replay.results.extend(results(message)),
            Role::Assistant => {
                if let Some(index) = replay.next(&script.turns) {
                    replay.used[index] += 1;
                }
                replay.turns += 1;
                replay.results.clear();
            }
            Role::System => {}
        }
    }
    replay.next(&script.turns).map(|index| &script.turns[index])
}

/// The turn at a position of a script without conditions.
fn nth(turns: &[Turn], place: u64) -> Option<&Turn> {
    let mut left = place;
    for turn in turns {
        match turn.repeat {
            Repeat::Times(times) if times <= left => left -= times,
            _ => return Some(turn),
        }
    }
    None
}

/// The part of the conversation that was read so far.
struct ConversationProgress<'a> {
    used: Vec<u64>,
    turns: u64,
    user: Option<&'a Message>,
    /// Results that no answer has followed yet.
    results: Vec<&'a Value>,
}

impl ConversationProgress<'_> {
    fn next(&self, turns: &[Turn]) -> Option<usize> {
        turns.iter().zip(&self.used).position(|(turn, used)| {
            let is_left = match turn.repeat {
                Repeat::Times(times) => *used < times,
                Repeat::Forever => true,
            };
            is_left && turn.when.as_ref().is_none_or(|when| self.holds(when))
        })
    }

    fn holds(&self, when: &When) -> bool {
        let user = |wanted: &TextCondition| {
            self.user.is_some_and(|message| wants(wanted, &Value::String(message.plain_text())))
        };
        let result = |wanted: &TextCondition| self.results.iter().any(|result| wants(wanted, result));
        let turns = |counted: &NumberCondition| {
            counted.is.is_none_or(|is| self.turns == is)
                && counted.at_least.is_none_or(|least| self.turns >= least)
                && counted.at_most.is_none_or(|most| self.turns <= most)
        };
        when.user.as_ref().is_none_or(user)
            && when.result.as_ref().is_none_or(result)
            && when.turns.as_ref().is_none_or(turns)
    }
}

/// Whether `found` matches. A text that is JSON is compared as text and as JSON.
fn wants(wanted: &TextCondition, found: &Value) -> bool {
    let read = found.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let either = |holds: &dyn Fn(&Value) -> bool| holds(found) || read.as_ref().is_some_and(holds);
    let equals = |value: &Value| either(&|found| found == value);
    let contains = |value: &Value| match value {
        Value::String(part) => plain(found).contains(part.as_str()),
        value => either(&|found| has(found, value)),
    };
    wanted.equals.as_ref().is_none_or(equals) && wanted.contains.as_ref().is_none_or(contains)
}

/// Whether every member of `part` is in `whole`; values that are not objects must be equal.
fn has(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(key, value)| whole.get(key).is_some_and(|member| has(member, value)))
        }
        (whole, part) => whole == part,
    }
}
