//! What is the same, and what is not.
//!
//! One function makes an event comparable, one compares two changesets. What legitimately differs is left out here and nowhere
//! else; see the list in [`super`].

use selvedge_model::limits::{Cost, DURATION_EXCEEDED};
use selvedge_model::{Event, Reason};
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
        Event::ToolIntent(intent) => (intent.process, intent.tool_hash) = (None, None),
        Event::ToolOutcome(outcome) => outcome.blob = None,
        Event::Decision(decision) => decision.action_hash = None,
        Event::RunStarted(run) | Event::RunFinished(run) => {
            run.meta.config = None;
            run.meta.cost.iter_mut().for_each(without_unknown);
        }
        Event::Usage(used) => without_unknown(&mut used.cost),
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

/// An event with the recorded moment where its own is next to it: the record does not say when exactly the clock was read.
fn timed_as(event: &Event, recorded: &[Event]) -> Event {
    let Event::Asked(ask) = event else { return event.clone() };
    let before = recorded.iter().find_map(|event| match event {
        Event::Asked(before) if before.call_id == ask.call_id => before.expires_at,
        _ => None,
    });
    let mut ask = ask.clone();
    if let (Some(at), Some(was)) = (ask.expires_at, before)
        && at.as_micros().abs_diff(was.as_micros()) <= NEAR_MICROS.unsigned_abs()
    {
        ask.expires_at = Some(was);
    }
    Event::Asked(ask)
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
