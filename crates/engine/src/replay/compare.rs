//! What is the same, and what is not.
//!
//! One function makes an event comparable, one compares two changesets. What legitimately differs is left out here and nowhere
//! else; see the list in [`super`].

use selvedge_model::limits::{Cost, DURATION_EXCEEDED};
use selvedge_model::message::Block;
use selvedge_model::{Event, Reason, Timestamp};
use serde::Serialize;
use serde_json::{Value, json};

use super::recording::Step;

/// One thing that came out otherwise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The version that the record came to.
    pub version: u64,
    /// The line of the log, from 1, as an editor counts.
    pub line: u64,
    /// Why the recorded changeset was committed.
    pub reason: Reason,
    /// What of it: an event and the place in it, `state`, or `changeset` where the two can't be laid side by side any more.
    pub what: String,
    /// What the record says; absent if it says nothing.
    pub recorded: Option<Value>,
    /// What came now; absent if nothing did.
    pub now: Option<Value>,
}

/// How far two moments may lie apart that were worked out from different readings of the clock.
const NEAR_MICROS: i64 = 10_000_000;
/// How many differences of one changeset are told.
const TOLD_MAX: usize = 20;

impl Difference {
    /// A changeset that did not come, or came instead of another one.
    pub(crate) fn of_step(step: &Step, now: Option<Value>) -> Self {
        let recorded = Some(outline(step.reason(), &step.events));
        Self::at(step, step.line, "changeset", recorded, now)
    }

    pub(crate) fn at(step: &Step, line: u64, what: &str, recorded: Option<Value>, now: Option<Value>) -> Self {
        Self { version: step.version(), line, reason: step.reason(), what: what.to_owned(), recorded, now }
    }
}

/// A changeset in short.
pub(crate) fn outline(reason: Reason, events: &[Event]) -> Value {
    let events: Vec<Value> = events.iter().filter_map(comparable).map(|(kind, event)| json!({kind: event})).collect();
    json!({"reason": reason.as_str(), "events": events})
}

/// An event as it is compared: its type, and what must be the same. Nothing if it is none of the engine's decisions.
fn comparable(event: &Event) -> Option<(String, Value)> {
    if event.is_record_of_a_posting() {
        return None;
    }
    let mut event = event.clone();
    match &mut event {
        // That a snapshot could not be saved says something of a disk.
        Event::ContextInjected(fields) if fields.contains_key("snapshot_failed") => return None,
        // Children are not run again.
        Event::ChildSpawned(_) | Event::ChildSettled(_) => return None,
        // Who asked for something, and under which name, is given.
        Event::RequestAnswered(_) => return None,
        Event::ToolIntent(intent) => (intent.process, intent.tool_hash) = (None, None),
        Event::ToolOutcome(outcome) => outcome.blob = None,
        // A long answer was shortened when it was recorded; its blob is not there to be named again.
        Event::Message(message) => message.content.iter_mut().for_each(|block| {
            if let Block::ToolResult { blob, .. } = block {
                *blob = None;
            }
        }),
        Event::Decision(decision) => decision.action_hash = None,
        Event::RunStarted(run) | Event::RunFinished(run) => {
            // Nor are prompts compared.
            (run.meta.config, run.meta.system) = (None, None);
            run.meta.cost.iter_mut().for_each(without_unknown);
        }
        Event::Usage(used) => {
            // Prompts are not recorded.
            (used.prompt_bytes, used.prompt_tokens) = (0, 0);
            without_unknown(&mut used.cost);
        }
        Event::Suspended(suspended) if suspended.code.as_deref() == Some(DURATION_EXCEEDED) => suspended.current = None,
        _ => {}
    }
    let mut value = serde_json::to_value(&event).unwrap_or_default();
    let kind = value.get("event_type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut payload = value.get_mut("payload").map(Value::take).unwrap_or_default();
    if let (Event::Asked(_), Value::Object(ask)) = (&event, &mut payload) {
        // Today's tools are the same all along.
        ask.retain(|name, _| name != "action_hash" && name != "redefined");
    }
    Some((kind, payload))
}

/// What calls cost of which nobody knows is not asked again: attempts that failed are not made a second time.
fn without_unknown(cost: &mut Cost) {
    cost.spend = cost.spend.saturating_sub(std::mem::take(&mut cost.spend_unknown));
}

/// Everything in which what came now is not what the record says; nothing if it is the same. Both were committed for the same reason.
pub(crate) fn differences(step: &Step, now: &[Event]) -> Vec<Difference> {
    let now: Vec<Event> = now.iter().map(|event| timed_as(event, &step.events)).collect();
    let (recorded, now) = (numbered(&step.events), numbered(&now));
    let mut found = Vec::new();
    let last_line = step.line + step.events.len() as u64;
    for (index, kind, was) in &recorded {
        let line = step.line + *index as u64;
        let nth = recorded.iter().take_while(|(at, ..)| at < index).filter(|(_, other, _)| other == kind).count();
        match now.iter().filter(|(_, other, _)| other == kind).nth(nth) {
            None => found.push(Difference::at(step, line, kind, Some(was.clone()), None)),
            Some((.., is)) => {
                let mut places = Vec::new();
                apart(kind, Some(was), Some(is), &mut places);
                let difference =
                    |(what, was, is): Apart<'_>| Difference::at(step, line, &what, was.cloned(), is.cloned());
                found.extend(places.into_iter().map(difference));
            }
        }
    }
    for (index, kind, is) in &now {
        let nth = now.iter().take_while(|(at, ..)| at < index).filter(|(_, other, _)| other == kind).count();
        if recorded.iter().filter(|(_, other, _)| other == kind).count() <= nth {
            found.push(Difference::at(step, last_line, kind, None, Some(is.clone())));
        }
    }
    let kinds =
        |events: &[(usize, String, Value)]| -> Vec<Value> { events.iter().map(|(_, kind, _)| json!(kind)).collect() };
    if found.is_empty() && kinds(&recorded) != kinds(&now) {
        let (was, is) = (json!(kinds(&recorded)), json!(kinds(&now)));
        found.push(Difference::at(step, step.line, "order", Some(was), Some(is)));
    }
    found.truncate(TOLD_MAX);
    found
}

/// The comparable events, each with its place in the changeset.
fn numbered(events: &[Event]) -> Vec<(usize, String, Value)> {
    let comparable = |(index, event)| comparable(event).map(|(kind, payload)| (index, kind, payload));
    events.iter().enumerate().filter_map(comparable).collect()
}

/// An event with the recorded moments where its own are next to them: the record does not say when exactly the clock was read. A moment
/// that an older version did not record is not compared.
fn timed_as(event: &Event, recorded: &[Event]) -> Event {
    let Event::Asked(ask) = event else { return event.clone() };
    let before = recorded.iter().find_map(|event| match event {
        Event::Asked(before) if before.call_id == ask.call_id => Some(before),
        _ => None,
    });
    let Some(before) = before else { return event.clone() };
    let mut ask = ask.clone();
    ask.asked_at = ask.asked_at.zip(before.asked_at).map(|(at, was)| nearly(at, was));
    if let (Some(at), Some(was)) = (ask.expires_at, before.expires_at) {
        ask.expires_at = Some(nearly(at, was));
    }
    Event::Asked(ask)
}

/// The recorded moment, if the other one is next to it.
fn nearly(at: Timestamp, was: Timestamp) -> Timestamp {
    match at.as_micros().abs_diff(was.as_micros()) <= NEAR_MICROS.unsigned_abs() {
        true => was,
        false => at,
    }
}

/// A place, with what is there in the one and in the other.
type Apart<'v> = (String, Option<&'v Value>, Option<&'v Value>);

/// Every place where two values differ.
fn apart<'v>(place: &str, was: Option<&'v Value>, is: Option<&'v Value>, found: &mut Vec<Apart<'v>>) {
    match (was, is) {
        (Some(Value::Object(was)), Some(Value::Object(is))) => {
            let added = is.keys().filter(|key| !was.contains_key(*key));
            for key in was.keys().chain(added) {
                apart(&format!("{place}.{key}"), was.get(key), is.get(key), found);
            }
        }
        (Some(Value::Array(was)), Some(Value::Array(is))) => {
            for index in 0..was.len().max(is.len()) {
                apart(&format!("{place}[{index}]"), was.get(index), is.get(index), found);
            }
        }
        (was, is) if was == is => {}
        (was, is) => found.push((place.to_owned(), was, is)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_model::event::{Ask, ResumeMode};
    use selvedge_model::{CallId, Digest};

    fn asked(asked_at: Option<i64>, expires_at: Option<i64>) -> Event {
        Event::Asked(Ask {
            call_id: CallId::new("c").unwrap(),
            tool: "pay".to_owned(),
            arguments: None,
            action_hash: Digest([7; 32]),
            why: None,
            redefined: false,
            asked_at: asked_at.map(Timestamp::from_micros),
            expires_at: expires_at.map(Timestamp::from_micros),
            resume_mode: ResumeMode::default(),
        })
    }

    #[test]
    fn moments_next_to_each_other_are_the_same_and_one_that_was_not_recorded_is_none() {
        let recorded = asked(Some(5), Some(50));
        assert_eq!(timed_as(&asked(Some(7), Some(52)), std::slice::from_ref(&recorded)), recorded);
        let later = asked(Some(5 + NEAR_MICROS + 1), Some(50 + NEAR_MICROS + 1));
        assert_eq!(timed_as(&later, std::slice::from_ref(&recorded)), later);
        let older = asked(None, None);
        assert_eq!(timed_as(&asked(Some(7), None), std::slice::from_ref(&older)), older);
        assert_eq!(timed_as(&asked(Some(7), Some(9)), &[older]), asked(None, Some(9)), "it did not expire then");
    }
}
