//! One line of a log.
//!
//! A line that is read can be written and read again to the same; a line that was written is written again byte for byte.

use selvedge_log::line::{self, Line};

use crate::golden;

/// Reads one line.
pub fn run(bytes: &[u8]) {
    let Ok(line) = line::decode(bytes) else { return };
    let Some(written) = write(&line) else { return };
    let again = line::decode(&written).expect("a written line can be read");
    assert_eq!(again, line, "written and read again it differs");
    assert_eq!(write(&again).expect("it was written before"), written, "it is written in two ways");
}

/// The bytes of a line, without its end; none if it would be too long or too deep to be written.
fn write(line: &Line) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    line::encode(&mut out, line.seq, line.timestamp, &line.thread_id, &line.event).ok()?;
    assert_eq!(out.pop(), Some(b'\n'));
    Some(out)
}

/// Every line of the worked example and one of every other type.
pub fn seeds() -> Vec<Vec<u8>> {
    let lines = golden::TRANSCRIPT.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let others = [
        r#""state_action","payload":{"kind":"note","n":1.5e-7}"#,
        r#""snapshot","payload":{"state":{"a":[1,{"b":null}]}}"#,
        r#""call_opened","payload":{"call_id":"c1","origin":{"type":"hook","hook":"h"},"tool":"t","arguments":{}}"#,
        r#""tool_intent","payload":{"call_id":"c1","tool":"t","class":"pure","key":"k"}"#,
        r#""tool_outcome","payload":{"call_id":"c1","result":{"a":1}}"#,
        r#""suspended","payload":{"reason":"limit","code":"turns","current":1,"maximum":2}"#,
        r#""decision","payload":{"call_id":"c1","action":"approve","who":"ada"}"#,
        r#""reserved","payload":{"account":"a","account_version":1,"amount_nanos":5,"reservation":"r"}"#,
        r#""manifest_changed","payload":{"title":"t","status":"running"}"#,
        r#""recovery","payload":{"found":"foreign","bytes":3,"quarantine":"transcript.quarantine-1"}"#,
        r#""hook_fired","payload":{"a":[[[[1]]]]}"#,
        r#""run_started","payload":{"run_id":"r1","meta":{"agent_id":"scribe","origin":"user","status":"running"}}"#,
        r#""blob_erased","payload":{"blob":"71f649b1944e7fe0dea2d955f5c1a2a6add4272a8efb0b1555ebcdea2d3bdd4c","reason":"asked"}"#,
    ];
    let start = r#"{"seq":3,"timestamp":"2026-11-15T00:00:03.000000Z","thread_id":"scribe-0123456789ab","event_type":"#;
    lines.map(<[u8]>::to_vec).chain(others.map(|rest| format!("{start}{rest}}}").into_bytes())).collect()
}
