//! Compares this verifier with the one that the server's page runs in a browser (`crates/server/web/check.js`), on good, damaged and odd logs.
//!
//! It runs in Node.js here. Skipped with a message if there is none, or one without Ed25519 in Web Crypto.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::golden;
use crate::python::ours;

/// Reads a log per line, and prints for each the version up to which it is unchanged and whether it is damaged.
const DRIVER: &str = r"
import {check, ed25519} from './check.mjs';
import readline from 'node:readline';
const verify = await ed25519();
if (!verify) process.exit(75);
for await (const text of readline.createInterface({input: process.stdin})) {
  const {log, thread, key, fingerprint} = JSON.parse(text);
  const keys = new Map([[fingerprint, Uint8Array.from(Buffer.from(key, 'hex'))]]);
  const found = await check(Uint8Array.from(Buffer.from(log, 'hex')), thread, keys, verify);
  console.log(JSON.stringify({version: found.version === null ? null : String(found.version), end: found.end}));
}
";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The results of the page's verifier for each log; `None` if it can't be run here.
fn browser(logs: &[Vec<u8>]) -> Option<Vec<Value>> {
    let folder = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/web/check.js");
    fs::copy(script, folder.path().join("check.mjs")).unwrap();
    fs::write(folder.path().join("driver.mjs"), DRIVER).unwrap();
    let started =
        Command::new("node").arg(folder.path().join("driver.mjs")).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut child) = started else {
        eprintln!("skipped: there is no Node.js on this machine");
        return None;
    };
    let public = golden::transcript().2.public();
    let (key, fingerprint) = (hex(public.as_bytes()), public.fingerprint());
    let jobs: Vec<String> = logs
        .iter()
        .map(|log| json!({"log": hex(log), "thread": golden::thread(), "key": key, "fingerprint": fingerprint}))
        .map(|job| job.to_string() + "\n")
        .collect();
    let mut asks = child.stdin.take().unwrap();
    // It may end early, if it can't check signatures.
    let writer = std::thread::spawn(move || jobs.iter().try_for_each(|job| asks.write_all(job.as_bytes())).is_ok());
    let answered = child.wait_with_output().unwrap();
    let is_written = writer.join().unwrap();
    if answered.status.code() == Some(75) {
        eprintln!("skipped: this Node.js has no Ed25519 in Web Crypto");
        return None;
    }
    assert!(answered.status.success() && is_written);
    let answers = String::from_utf8(answered.stdout).unwrap();
    Some(answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

#[track_caller]
fn agree(samples: &[(String, Vec<u8>)]) {
    let logs: Vec<Vec<u8>> = samples.iter().map(|(_, bytes)| bytes.clone()).collect();
    let Some(said) = browser(&logs) else { return };
    assert_eq!(said.len(), samples.len());
    let (_, _, signer) = golden::transcript();
    for ((what, bytes), said) in samples.iter().zip(said) {
        let (version, verdict) = ours(bytes, &golden::thread(), &signer, None);
        let theirs = said["version"].as_str().map(|version| version.parse::<u64>().unwrap());
        assert_eq!(theirs, version, "{what}: {said}");
        assert_eq!(said["end"] == "damaged", verdict == "damaged", "{what}: {said}, and here {verdict}");
    }
}

#[test]
fn the_page_judges_odd_logs_as_this_verifier() {
    let samples: Vec<(String, Vec<u8>)> =
        crate::odd::samples().into_iter().map(|(what, bytes, ..)| (what.to_owned(), bytes)).collect();
    agree(&samples);
    let gaps: Vec<(String, Vec<u8>)> =
        crate::gap::samples().into_iter().map(|(what, bytes, _)| (what.to_owned(), bytes)).collect();
    agree(&gaps);
}

#[test]
fn the_page_proves_of_damaged_logs_what_this_verifier_proves() {
    let (bytes, ..) = golden::transcript();
    let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    let mut samples = vec![("whole".to_owned(), bytes.clone()), ("empty".to_owned(), Vec::new())];
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        samples.push((format!("bit {} of byte {at} flipped", at % 8), flipped));
    }
    for length in (1..bytes.len()).step_by(17) {
        samples.push((format!("cut at {length}"), bytes[..length].to_vec()));
    }
    for at in 0..lines.len() {
        let mut removed = lines.clone();
        removed.remove(at);
        samples.push((format!("line {at} removed"), removed.concat()));
        let mut doubled = lines.clone();
        doubled.insert(at, lines[at]);
        samples.push((format!("line {at} doubled"), doubled.concat()));
        let mut swapped = lines.clone();
        swapped.swap(at, (at + 1) % lines.len());
        samples.push((format!("lines around {at} swapped"), swapped.concat()));
        for foreign in [&b"garbage\n"[..], b"{}\n", b"\n", b"\xff\xfe\n", b"{\"seq\":1e999}\n", b"\xef\xbb\xbf{}\n"] {
            let inserted = [&lines[..at].concat(), foreign, &lines[at..].concat()].concat();
            samples.push((format!("{foreign:?} put before line {at}"), inserted));
        }
    }
    agree(&samples);
}

/// A signature of a key or a point of small order holds for many messages where only the equation is checked.
#[test]
fn the_page_refuses_keys_of_small_order() {
    let folder = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/web/check.js");
    fs::copy(script, folder.path().join("check.mjs")).unwrap();
    let test = r"
import {ed25519} from './check.mjs';
const verify = await ed25519();
if (!verify) process.exit(0);
const small = ['01' + '00'.repeat(31), 'ec' + 'ff'.repeat(30) + '7f', '00'.repeat(32), '00'.repeat(31) + '80',
  'c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a', '26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05'];
for (const key of small) for (const point of small) {
  const signature = Uint8Array.from(Buffer.from(point + '00'.repeat(32), 'hex'));
  for (const text of ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h']) {
    if (await verify(Uint8Array.from(Buffer.from(key, 'hex')), new TextEncoder().encode(text), signature)) process.exit(1);
  }
}
";
    fs::write(folder.path().join("test.mjs"), test).unwrap();
    match Command::new("node").arg(folder.path().join("test.mjs")).status() {
        Ok(status) => assert!(status.success()),
        Err(_) => eprintln!("skipped: there is no Node.js on this machine"),
    }
}
