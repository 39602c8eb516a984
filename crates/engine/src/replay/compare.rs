//! Compares recorded with replayed events.
//!
//! One function makes an event comparable, one compares two changesets. What legitimately differs is left out here and nowhere else; see the
//! list in [`super`].

use selvedge_model::limits::{Cost, DURATION_EXCEEDED};
use selvedge_model::message::Block;
use selvedge_model::{Event, Reason, Timestamp};
use serde::Serialize;
use serde_json::{Value, json};

use super::recording::RecordedChangeset;

/// One difference between record and replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The version of the recorded changeset.
    pub version: u64,
    /// The line of the log, from 1, as an editor counts.
    pub line: u64,
    /// Why the recorded changeset was committed.
    pub reason: Reason,
    /// What differs: an event and the path in it, `state`, or `changeset` if the two diverged.
    pub what: String,
    /// The recorded value; absent if there is none.
    pub recorded: Option<Value>,
    /// The replayed value; absent if there is none.
    pub now: Option<Value>,
}

/// How far apart two times may be that were computed from different readings of the clock.
const NEAR_MICROS: i64 = 10_000_000;
/// The most differences of one changeset that are reported.
const TOLD_MAX: usize = 20;

impl Difference {
    /// A changeset that is missing, or was replaced by another one.
    pub(crate) fn of_step(step: &RecordedChangeset, now: Option<Value>) -> Self {
        let recorded = Some(outline(step.reason(), &step.events));
        Self::at(step, step.line, "changeset", recorded, now)
    }

    pub(crate) fn at(
        step: &RecordedChangeset,
        line: u64,
        what: &str,
        recorded: Option<Value>,
        now: Option<Value>,
    ) -> Self {
        Self { version: step.version(), line, reason: step.reason(), what: what.to_owned(), recorded, now }
    }
}

/// A short form of a changeset.
pub(crate) fn outline(reason: Reason, events: &[Event]) -> Value {
    let events: Vec<Value> = events.iter().filter_map(comparable).map(|(kind, event)| json!({kind: event})).collect();
    json!({"reason": reason.as_str(), "events": events})
}

/// An event as it is compared: its type, and what must be the same. None if it is not decided by the engine.
fn comparable(event: &Event) -> Option<(String, Value)> {
    if event.is_record_of_a_posting() {
        return None;
    }
    let mut event = event.clone();
    match &mut event {
        // A failed snapshot depends on a disk.
        Event::ContextInjected(fields) if fields.contains_key("snapshot_failed") => return None,
        // Children are not run again.
        Event::ChildSpawned(_) | Event::ChildSettled(_) => return None,
        // Nothing is started again, so nothing is restricted.
        Event::Sandboxed(_) => return None,
        // The sender of a request, and its id, are given.
        Event::RequestAnswered(_) => return None,
        Event::ToolIntent(intent) => {
            intent.process = None;
            intent.tool_hash = None;
        }
        Event::ToolOutcome(outcome) => outcome.blob = None,
        // A long result was shortened when it was recorded; its blob is not available here.
        Event::Message(message) => {
            for block in &mut message.content {
                if let Block::ToolResult { blob, .. } = block {
                    *blob = None;
                }
            }
        }
        // When exactly the clock was read is not on record.
        Event::StepStarted(fields)
        | Event::StepCompleted(fields)
        | Event::GraphCompleted(fields)
        | Event::GraphError(fields)
        | Event::GraphCancelled(fields) => {
            fields.remove("elapsed_s");
            fields.remove("not_before");
        }
        Event::Decision(decision) => decision.action_hash = None,
        Event::RunStarted(run) | Event::RunFinished(run) => {
            // Prompts are not compared.
            run.meta.config = None;
            run.meta.system = None;
            run.meta.prompt.clear();
            if let Some(cost) = &mut run.meta.cost {
                without_unknown(cost);
            }
        }
        Event::Usage(used) => {
            // Prompts are not recorded.
            used.prompt_bytes = 0;
            used.prompt_tokens = 0;
            without_unknown(&mut used.cost);
        }
        Event::Suspended(suspended) => {
            // Processes of the recorded run are not probed again.
            suspended.probed.clear();
            if suspended.code.as_deref() == Some(DURATION_EXCEEDED) {
                suspended.current = None;
            }
        }
        _ => {}
    }
    let mut value = serde_json::to_value(&event).unwrap_or_default();
    let kind = value.get("event_type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut payload = value.get_mut("payload").map(Value::take).unwrap_or_default();
    if let (Event::Asked(_), Value::Object(ask)) = (&event, &mut payload) {
        // Tools are not redefined during a replay.
        ask.retain(|name, _| name != "action_hash" && name != "redefined");
    }
    Some((kind, payload))
}

/// Removes costs that are unknown: failed attempts are not made a second time.
fn without_unknown(cost: &mut Cost) {
    cost.spend = cost.spend.saturating_sub(std::mem::take(&mut cost.spend_unknown));
}

/// All differences between a recorded changeset and the events of the replayed one. Both have the same reason.
pub(crate) fn differences(step: &RecordedChangeset, now: &[Event]) -> Vec<Difference> {
    let now: Vec<Event> = now.iter().map(|event| timed_as(event, &step.events)).collect();
    let recorded = numbered(&step.events);
    let now = numbered(&now);
    let mut found = Vec::new();
    let last_line = step.line + step.events.len() as u64;
    for (index, kind, was) in &recorded {
        let line = step.line + *index as u64;
        let nth = recorded.iter().take_while(|(at, ..)| at < index).filter(|(_, other, _)| other == kind).count();
        match now.iter().filter(|(_, other, _)| other == kind).nth(nth) {
            None => found.push(Difference::at(step, line, kind, Some(was.clone()), None)),
            Some((.., is)) => {
                let mut places = Vec::new();
                diff_values(kind, Some(was), Some(is), &mut places);
                let difference =
                    |(what, was, is): ValueDiff<'_>| Difference::at(step, line, &what, was.cloned(), is.cloned());
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
        let was = json!(kinds(&recorded));
        let is = json!(kinds(&now));
        found.push(Difference::at(step, step.line, "order", Some(was), Some(is)));
    }
    found.truncate(TOLD_MAX);
    found
}

/// The comparable events, each with its position in the changeset.
fn numbered(events: &[Event]) -> Vec<(usize, String, Value)> {
    let comparable = |(index, event)| comparable(event).map(|(kind, payload)| (index, kind, payload));
    events.iter().enumerate().filter_map(comparable).collect()
}

/// An event with the recorded times if its own are close to them: the record does not say when exactly the clock was read. A time that an
/// older version did not record is not compared.
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

/// The recorded time, if the other one is close to it.
fn nearly(at: Timestamp, was: Timestamp) -> Timestamp {
    let is_near = at.as_micros().abs_diff(was.as_micros()) <= NEAR_MICROS.unsigned_abs();
    if is_near { was } else { at }
}

/// A path, with the value in the record and in the replay.
type ValueDiff<'v> = (String, Option<&'v Value>, Option<&'v Value>);

/// Every path where two values differ.
fn diff_values<'v>(place: &str, was: Option<&'v Value>, is: Option<&'v Value>, found: &mut Vec<ValueDiff<'v>>) {
    match (was, is) {
        (Some(Value::Object(was)), Some(Value::Object(is))) => {
            let added = is.keys().filter(|key| !was.contains_key(*key));
            for key in was.keys().chain(added) {
                diff_values(&format!("{place}.{key}"), was.get(key), is.get(key), found);
            }
        }
        (Some(Value::Array(was)), Some(Value::Array(is))) => {
            for index in 0..was.len().max(is.len()) {
                diff_values(&format!("{place}[{index}]"), was.get(index), is.get(index), found);
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
    fn close_times_are_equal_and_a_time_that_was_not_recorded_is_ignored() {
        let recorded = asked(Some(5), Some(50));
        assert_eq!(timed_as(&asked(Some(7), Some(52)), std::slice::from_ref(&recorded)), recorded);
        let later = asked(Some(5 + NEAR_MICROS + 1), Some(50 + NEAR_MICROS + 1));
        assert_eq!(timed_as(&later, std::slice::from_ref(&recorded)), later);
        let older = asked(None, None);
        assert_eq!(timed_as(&asked(Some(7), None), std::slice::from_ref(&older)), older);
        assert_eq!(
            timed_as(&asked(Some(7), Some(9)), &[older]),
            asked(None, Some(9)),
            "it had no expiry in the record"
        );
    }
}
