//! Time and size.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use selvedge_model::answer::Usage;
use selvedge_model::{Cancel, Draft, Model, ModelError, Prompt, Stop};
use selvedge_providers::fake::{Dialogue, FakeAnswer, Reply};

use super::{Stage, ask_drafting, text};

pub(crate) fn a_stream_that_stalls_is_cut_at_the_idle_limit(dialogue: &dyn Dialogue) {
    let mut stage = Stage::new(dialogue);
    stage.host.timeouts.idle = Duration::from_millis(700);
    let events = dialogue.answer(&FakeAnswer::text(&["half", "never"]));
    let half = events.iter().position(|event| event.contains("half")).unwrap() + 1;
    stage.server.push(Reply::stream().pieces(&events[..half]).stall());
    let begun = Instant::now();
    let ModelError::Cut { why, partial, .. } = stage.error() else { panic!("a stall is a cut") };
    assert!(why.contains("stalled") && text(&partial) == "half", "{why}");
    assert!(begun.elapsed() < Duration::from_secs(4));
    assert!(stage.server.saw_hangups(1, Duration::from_secs(5)), "the connection is closed");
}

pub(crate) fn a_host_that_does_not_respond_is_cut_at_the_first_byte_limit(dialogue: &dyn Dialogue) {
    let mut stage = Stage::new(dialogue);
    stage.host.timeouts.first_byte = Duration::from_millis(200);
    stage.server.push(Reply::nothing().stall());
    let ModelError::Cut { why, usage, .. } = stage.error() else { panic!("it was sent, and nothing came back") };
    assert!(why.contains("no response within 200ms"), "{why}");
    assert_eq!(usage, None);
    assert!(stage.server.saw_hangups(1, Duration::from_secs(5)), "the connection is closed");
}

pub(crate) fn limits_without_an_end_are_allowed(dialogue: &dyn Dialogue) {
    let mut stage = Stage::new(dialogue);
    let limits = &mut stage.host.timeouts;
    (limits.first_byte, limits.idle, limits.total) = (Duration::MAX, Duration::MAX, Duration::MAX);
    stage.server.push(Reply::events(dialogue.answer(&FakeAnswer::text(&["at last"]))));
    assert_eq!(text(&stage.ask().unwrap().content), "at last");
}

pub(crate) fn a_slow_drip_is_read_until_the_total_limit(dialogue: &dyn Dialogue) {
    let mut stage = Stage::new(dialogue);
    let stream = dialogue.answer(&FakeAnswer::text(&["drip ", "drop"])).concat();
    stage.server.push(Reply::stream().dripping(&stream, 25, Duration::from_millis(2)).end());
    assert_eq!(text(&stage.ask().unwrap().content), "drip drop");
    stage.host.timeouts.total = Duration::from_millis(800);
    stage.server.push(Reply::stream().dripping(&stream, 1, Duration::from_millis(20)).end());
    let ModelError::Cut { why, .. } = stage.error() else { panic!("the total limit cuts") };
    assert!(why.contains("longer than 800ms"), "{why}");
}

pub(crate) fn a_cancelled_call_closes_the_connection_and_keeps_its_text(dialogue: &dyn Dialogue) {
    let stage = Stage::new(dialogue);
    let events = dialogue.answer(&FakeAnswer::text(&["begun", "never"]));
    let half = events.iter().position(|event| event.contains("begun")).unwrap() + 1;
    stage.server.push(Reply::stream().pieces(&events[..half]).stall());
    let cancel = Cancel::new();
    let messages = super::hello();
    let prompt = Prompt::new(super::MODEL, &messages);
    let model = super::remote(&stage.host);
    let mut drafts = Vec::new();
    let mut draft = |draft| {
        drafts.push(draft);
        cancel.say(Stop::Cancelled);
    };
    let answer = super::runtime().block_on(model.answer(&prompt, &mut draft, &cancel));
    let Err(ModelError::Stopped { partial, usage }) = answer else { panic!("it was stopped: {answer:?}") };
    assert_eq!(text(&partial), "begun");
    assert_eq!(super::drafted(&drafts), "begun");
    assert!(usage.is_none_or(|usage| usage.estimated));
    assert!(stage.server.saw_hangups(1, Duration::from_secs(5)), "the server sees that the connection is closed");
}

pub(crate) fn a_dropped_call_closes_the_connection(dialogue: &dyn Dialogue) {
    let stage = Stage::new(dialogue);
    let events = dialogue.answer(&FakeAnswer::text(&["begun", "never"]));
    let half = events.iter().position(|event| event.contains("begun")).unwrap() + 1;
    stage.server.push(Reply::stream().pieces(&events[..half]).stall());
    let messages = super::hello();
    let prompt = Prompt::new(super::MODEL, &messages);
    let model = super::remote(&stage.host);
    let cancel = Cancel::new();
    // The runtime lives on: it is the drop that closes the connection.
    let runtime = super::runtime();
    let has_begun = AtomicBool::new(false);
    runtime.block_on(async {
        let mut draft = |draft| has_begun.store(as_text(draft).as_deref() == Some("begun"), Ordering::Relaxed);
        let mut call = model.answer(&prompt, &mut draft, &cancel);
        while !has_begun.load(Ordering::Relaxed) {
            assert!(tokio::time::timeout(Duration::from_millis(10), &mut call).await.is_err());
        }
        drop(call);
        tokio::time::sleep(Duration::from_millis(50)).await;
    });
    assert!(stage.server.saw_hangups(1, Duration::from_secs(5)));
}

fn as_text(draft: Draft) -> Option<String> {
    match draft {
        Draft::Text { text } => Some(text),
        _ => None,
    }
}

pub(crate) fn a_call_that_is_cancelled_before_it_is_sent_costs_nothing(dialogue: &dyn Dialogue) {
    let stage = Stage::new(dialogue);
    let cancel = Cancel::new();
    cancel.say(Stop::Cancelled);
    let (answer, _) = ask_drafting(&stage.host, &cancel);
    assert_eq!(answer, Err(ModelError::Stopped { partial: Vec::new(), usage: Some(Usage::default()) }));
    assert!(stage.server.received().is_empty());
}

pub(crate) fn an_answer_of_ten_megabytes_is_read(dialogue: &dyn Dialogue) {
    let stage = Stage::new(dialogue);
    let piece = "0123456789abcdef".repeat(64);
    let events = dialogue.answer(&FakeAnswer::text(&[&piece]));
    let place = events.iter().position(|event| event.contains(&piece)).unwrap();
    let reply = Reply::stream().pieces(&events[..place]).repeat(&events[place], 10 * 1024);
    stage.server.push(reply.pieces(&events[place + 1..]).end());
    let messages = super::hello();
    let prompt = Prompt::new(super::MODEL, &messages);
    let mut drafted = 0;
    let mut count = |draft| drafted += as_text(draft).map_or(0, |text| text.len());
    let model = super::remote(&stage.host);
    let answer = super::runtime().block_on(model.answer(&prompt, &mut count, &Cancel::new()));
    assert_eq!(text(&answer.unwrap().content).len(), 10 * 1024 * 1024);
    assert_eq!(drafted, 10 * 1024 * 1024);
    // Each test is a process of its own under the usual runner: its highest memory use is this one's.
    if std::env::var_os("NEXTEST").is_some() {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        let peak: u64 = peak.and_then(|peak| peak.trim().parse().ok()).unwrap_or(0);
        assert!(peak < 60 * 1024, "{peak} kB");
    }
}
