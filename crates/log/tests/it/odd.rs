//! Logs that no writer of this project writes, signed by hand: both verifiers accept what the page allows and refuse everything else.

use selvedge_log::Trust;
use selvedge_log::hash::sha256;
use selvedge_log::keys::DOMAIN_CHECKPOINT;
use selvedge_log::scan::{Scanner, Signatures, examine};
use selvedge_log::strict::MAX_LINE_BYTES;

use crate::golden;
use crate::python::{Python, ours};

const TIME: &str = "2026-11-15T00:00:00.000000Z";
const LOG: &str = "00112233445566778899aabbccddeeff";
const BIRTH: &str =
    r#"{"format":1,"log_id":"00112233445566778899aabbccddeeff","segment":0,"kind":"agent","agent_id":"scribe"}"#;

/// A log that is written by hand, with each checkpoint signed as written.
struct Odd {
    bytes: Vec<u8>,
    seq: u64,
}

impl Odd {
    /// A log whose `thread_created` has this payload, and its checkpoint.
    fn born(payload: &str) -> Self {
        Self { bytes: Vec::new(), seq: 0 }.event("thread_created", payload).checkpoint(0)
    }

    fn new() -> Self {
        Self::born(BIRTH)
    }

    fn event(self, event_type: &str, payload: &str) -> Self {
        let line = format!(
            r#"{{"seq":{},"timestamp":"{TIME}","thread_id":"{}","event_type":"{event_type}","payload":{payload}}}"#,
            self.seq,
            golden::thread()
        );
        self.line(&line)
    }

    fn line(mut self, line: &str) -> Self {
        self.bytes.extend_from_slice(line.as_bytes());
        self.bytes.push(b'\n');
        self.seq += 1;
        self
    }

    /// A checkpoint whose members are changed by `change` before it is signed.
    fn signed(self, version: &str, change: impl Fn(String) -> String) -> Self {
        let signer = golden::transcript().2;
        let unsigned = format!(
            r#"{{"seq":{},"timestamp":"{TIME}","thread_id":"{}","event_type":"checkpoint","payload":{{"version":{version},"reason":"Lifecycle","epoch":0,"log_id":"{LOG}","segment":0,"byte_offset":{},"hash":"{}","signer":"{}""#,
            self.seq,
            golden::thread(),
            self.bytes.len(),
            sha256(&self.bytes),
            signer.fingerprint()
        );
        let unsigned = change(unsigned);
        let sig = signer.sign(DOMAIN_CHECKPOINT, unsigned.as_bytes());
        self.line(&format!(r#"{unsigned},"sig":"{sig}"}}}}"#))
    }

    fn checkpoint(self, version: u64) -> Self {
        self.signed(&version.to_string(), |line| line)
    }
}

/// For each sample: its name, its bytes, the version up to which it is valid, and whether this program understands all of that.
pub(crate) fn samples() -> Vec<(&'static str, Vec<u8>, Option<u64>, bool)> {
    let swap = |from: &'static str, to: &'static str| move |line: String| line.replacen(from, to, 1);
    let loss = |from: u64, to: u64| format!(r#"{{"found":"loss","bytes":0,"from_version":{from},"to_version":{to}}}"#);
    let said = |payload: &str| Odd::new().event("message", payload).checkpoint(1);
    let one = |odd: Odd| odd.bytes;
    let room = MAX_LINE_BYTES - one(Odd::new().event("state_action", r#"{"x":""}"#)).len() + one(Odd::new()).len();
    let long = |more: usize| format!(r#"{{"x":"{}"}}"#, "x".repeat(room + more));
    vec![
        ("nothing odd", one(said(r#"{"role":"user","content":"hello"}"#)), Some(1), true),
        ("an unknown role", one(said(r#"{"role":"oracle","content":"hello"}"#)), Some(1), false),
        ("an unknown member of a message", one(said(r#"{"role":"user","content":"x","mood":"odd"}"#)), Some(1), false),
        ("an unknown kind of block", one(said(r#"{"role":"user","content":[{"type":"smell"}]}"#)), Some(1), false),
        ("an unknown member of an event", one(Odd::new().event("blob_erased", &format!(r#"{{"blob":"{}","reason":"r","more":[1]}}"#, sha256(b""))).checkpoint(1)), Some(1), true),
        ("a payload that lacks what its event needs", one(Odd::new().event("tool_intent", "{}").checkpoint(1)), Some(1), false),
        ("an unknown op", one(Odd::new().event("patch", r#"{"ops":[{"op":"xor","path":[]}]}"#).checkpoint(1)), Some(1), false),
        ("an unknown reason", one(Odd::new().signed("1", swap("Lifecycle", "Whim"))), Some(1), false),
        ("no reason at all", one(Odd::new().signed("1", swap(r#""reason":"Lifecycle","#, ""))), Some(1), false),
        ("an unknown member of a checkpoint", one(Odd::new().signed("1", swap(r#""epoch":0"#, r#""epoch":0,"mood":1"#))), Some(1), true),
        ("an unknown kind of thread", one(Odd::born(&BIRTH.replace(r#""agent","#, r#""ghost","#))), Some(0), false),
        ("a signed line that is not understood", one(said(r#"{"role":"oracle"}"#).event("state_action", "{}").checkpoint(2)), Some(2), false),
        ("members in another order and white space", one(Odd::new().line(&format!(r#"{{ "payload" : {{}} , "event_type":"state_action","thread_id":"{}","seq":2,"timestamp":"{TIME}"}}"#, golden::thread())).checkpoint(1)), Some(1), true),
        ("an unknown member of a line", one(Odd::new().line(&format!(r#"{{"seq":2,"timestamp":"{TIME}","thread_id":"{}","event_type":"state_action","payload":{{}},"x":1}}"#, golden::thread())).checkpoint(1)), Some(0), true),
        ("an unknown event", one(Odd::new().event("seance", "{}").checkpoint(1)), Some(0), true),
        ("a payload that is no object", one(Odd::new().event("state_action", "[]").checkpoint(1)), Some(0), true),
        ("a birth without a format", one(Odd::born(&BIRTH.replace(r#""format":1,"#, ""))), None, true),
        ("a birth of another format", one(Odd::born(&BIRTH.replace(r#""format":1"#, r#""format":2"#))), None, true),
        ("the highest version", one(Odd::new().event("recovery", &loss(1, (1 << 63) - 2)).checkpoint((1 << 63) - 1)), Some((1 << 63) - 1), true),
        ("a version above the highest", one(Odd::new().event("recovery", &loss(1, (1 << 63) - 1)).checkpoint(1 << 63)), Some(0), true),
        ("a version beyond 64 bits", one(Odd::new().event("recovery", &loss(1, u64::MAX)).signed("18446744073709551616", |line| line)), Some(0), true),
        ("a version that overflows", one(Odd::new().event("recovery", &loss(1, (1 << 63) - 2)).checkpoint((1 << 63) - 1).checkpoint(1 << 63)), Some((1 << 63) - 1), true),
        ("an epoch that is too great", one(Odd::new().signed("1", swap(r#""epoch":0"#, r#""epoch":9223372036854775808"#))), Some(0), true),
        ("the greatest epoch", one(Odd::new().signed("1", swap(r#""epoch":0"#, r#""epoch":9223372036854775807"#))), Some(1), true),
        ("an epoch with a fraction", one(Odd::new().signed("1", swap(r#""epoch":0"#, r#""epoch":0.0"#))), Some(0), true),
        ("a negative epoch", one(Odd::new().signed("1", swap(r#""epoch":0"#, r#""epoch":-0"#))), Some(0), true),
        ("an epoch that is a truth value", one(Odd::new().signed("1", swap(r#""epoch":0"#, r#""epoch":true"#))), Some(0), true),
        ("a version with a fraction", one(Odd::new().signed("1.0", |line| line)), Some(0), true),
        ("a segment that is a truth value", one(Odd::new().signed("1", swap(r#""segment":0"#, r#""segment":false"#))), Some(0), true),
        ("an offset with a fraction", one(Odd::new().signed("1", |line| { let offset = format!(r#""byte_offset":{}"#, one_born().len()); line.replace(&offset, &format!("{offset}.0")) })), Some(0), true),
        ("a line number with a fraction", one(Odd::new().line(&format!(r#"{{"seq":2.0,"timestamp":"{TIME}","thread_id":"{}","event_type":"state_action","payload":{{}}}}"#, golden::thread())).checkpoint(1)), Some(0), true),
        ("a format that is a truth value", one(Odd::born(&BIRTH.replace(r#""format":1"#, r#""format":true"#))), None, true),
        ("a log id in capitals", one(Odd::born(&BIRTH.replace("aabbccddeeff", "AABBCCDDEEFF"))), None, true),
        ("a loss whose version has a fraction", one(Odd::new().event("recovery", r#"{"found":"loss","bytes":0,"from_version":1.0,"to_version":2}"#).checkpoint(3)), Some(0), false),
        ("a recovery that does not say what was found", one(Odd::new().event("recovery", "{}").checkpoint(1)), Some(1), false),
        ("a rotation that names no keys", one(Odd::new().event("key_rotated", "{}").checkpoint(1)), Some(1), false),
        ("a time that is no date", one(Odd::new().line(&format!(r#"{{"seq":2,"timestamp":"2026-02-30T00:00:00.000000Z","thread_id":"{}","event_type":"state_action","payload":{{}}}}"#, golden::thread())).checkpoint(1)), Some(0), true),
        ("a time before 1970", one(Odd::new().line(&format!(r#"{{"seq":2,"timestamp":"1969-12-31T23:59:59.999999Z","thread_id":"{}","event_type":"state_action","payload":{{}}}}"#, golden::thread())).checkpoint(1)), Some(0), true),
        ("a version as text", one(Odd::new().signed(r#""1""#, |line| line)), Some(0), true),
        ("a hash in capitals", one(Odd::new().signed("1", |line| line.replace(&sha256(&one_born()).to_string(), &sha256(&one_born()).to_string().to_uppercase()))), Some(0), true),
        ("a signer in capitals", one(Odd::new().signed("1", |line| { let signer = golden::transcript().2.fingerprint().to_string(); line.replace(&signer, &signer.to_uppercase()) })), Some(0), true),
        ("the longest line", one(Odd::new().event("state_action", &long(0)).checkpoint(1)), Some(1), true),
        ("a line that is one byte longer", one(Odd::new().event("state_action", &long(1)).checkpoint(1)), Some(0), true),
        ("a time of another form", one(Odd::new().line(&format!(r#"{{"seq":2,"timestamp":"2026-11-15T00:00:00Z","thread_id":"{}","event_type":"state_action","payload":{{}}}}"#, golden::thread())).checkpoint(1)), Some(0), true),
    ]
}

fn one_born() -> Vec<u8> {
    Odd::new().bytes
}

#[test]
fn both_verifiers_judge_odd_logs_as_the_page_says() {
    let thread = golden::thread();
    let signer = golden::transcript().2;
    let mut python = Python::start();
    for (what, bytes, version, is_understood) in samples() {
        let (found, verdict) = ours(&bytes, &thread, &signer, None);
        assert_eq!(found, version, "{what}: {verdict}");
        let trust = Trust::of(&[signer.public()]);
        let scanner = Scanner::new(&thread, &trust, Signatures::Every);
        let mut handed_on = None;
        let examined = examine(bytes.as_slice(), scanner, |entry| handed_on = Some(entry.head.version)).unwrap();
        assert_eq!(examined.unread.is_none(), is_understood, "{what}: {:?}", examined.unread);
        assert_eq!(
            examined.head().map(|head| head.version),
            handed_on,
            "{what}: a fold ends before the first line that is not understood"
        );
        if let Some(python) = &mut python {
            let theirs = python.verify(&bytes, &thread, &signer, None);
            assert_eq!(theirs["unchanged_up_to"].as_u64(), version, "{what}: {theirs}");
            assert_eq!(theirs["verdict"], verdict, "{what}: {theirs}");
        }
    }
}
