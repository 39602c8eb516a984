//! What happens in the demo, one function per beat. Each says what it saw, and fails if that is not what was promised.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Output};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use selvedge_log::lines::next_line;
use selvedge_log::recovery::Finding;
use selvedge_model::{Event, Ids};
use selvedge_store::load::each_changeset;
use selvedge_store_local::system::SystemIds;
use selvedge_store_local::{Access, LocalStore, Verdict};
use serde_json::{Value, json};

use super::Shown;
use super::stage::Stage;
use super::writer::words;
use crate::error::{Exit, Failure, Result};
use crate::text::{count, grouped, key};

/// The writer is killed a moment after it was told of this many versions, or after this long.
const VERSIONS_BEFORE_KILL: usize = 200;
const TIME_BEFORE_KILL: Duration = Duration::from_secs(3);
const SIGKILL: i32 = 9;

fn broken(message: impl Into<String>) -> Failure {
    Failure::new(Exit::Failed, "demo_failed", message)
}

fn promise(kept: bool, otherwise: impl FnOnce() -> String) -> Result<()> {
    if kept { Ok(()) } else { Err(broken(otherwise())) }
}

/// A child process writes and is killed with SIGKILL.
pub(super) fn kill(stage: &mut Stage) -> Result<Shown> {
    let started = |error: io::Error| Failure::io("start", &stage.program, &error);
    let mut child = stage.another_process().arg("demo-writer").arg(stage.thread.as_str()).spawn().map_err(started)?;
    let stdout = child.stdout.take().ok_or_else(|| broken("the writer has no stdout"))?;
    let (tell, told) = mpsc::channel();
    let listener = thread::spawn(move || {
        let versions =
            BufReader::new(stdout).lines().map_while(io::Result::ok).filter_map(|line| line.parse::<u64>().ok());
        for version in versions {
            if tell.send(version).is_err() {
                break;
            }
        }
    });
    let deadline = Instant::now() + TIME_BEFORE_KILL;
    let mut acknowledged = Vec::new();
    while acknowledged.len() < VERSIONS_BEFORE_KILL {
        match told.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(version) => acknowledged.push(version),
            Err(_) => break,
        }
    }
    let pid = child.id();
    thread::sleep(some_moment());
    let output = end(child)?;
    // What was acknowledged before the signal arrived is still in the pipe.
    drop(listener.join());
    acknowledged.extend(told.try_iter());
    promise(output.status.signal() == Some(SIGKILL), || {
        format!("the writer ended by itself: {}", String::from_utf8_lossy(&output.stderr).trim())
    })?;
    promise(!acknowledged.is_empty(), || "the writer was told of no version at all".to_owned())?;
    stage.acknowledged = acknowledged;
    let count = stage.acknowledged.len();
    Ok(Shown {
        message: format!("Process {pid} was told \"committed\" {count} times, and was writing on when SIGKILL came."),
        details: json!({ "pid": pid, "signal": SIGKILL, "acknowledged": count, "last_acknowledged": stage.acknowledged.last() }),
    })
}

/// Up to two milliseconds, so that the signal comes at another point of a commit every time.
fn some_moment() -> Duration {
    let mut bytes = [0; 2];
    SystemIds.fill(&mut bytes);
    Duration::from_micros(u64::from(u16::from_le_bytes(bytes)) % 2000)
}

fn end(mut child: Child) -> Result<Output> {
    let ended = |error: io::Error| Failure::io("end", Path::new("the writer"), &error);
    child.kill().map_err(ended)?;
    child.wait_with_output().map_err(ended)
}

/// Every acknowledged version is there, with its words.
pub(super) fn recover(stage: &mut Stage) -> Result<Shown> {
    let store = stage.open(Access::ReadWrite)?;
    let (bytes, leases) = (store.opened().drained_bytes, store.opened().dead_leases);
    let mut present = Vec::new();
    let head = each_changeset(&store, &stage.thread, store.trust(), |entry| {
        let expected = words(entry.head.version);
        let has_words = |event: &Event| matches!(event, Event::Message(message) if message.plain_text() == expected);
        if entry.lines.iter().any(|line| has_words(&line.event)) {
            present.push(entry.head.version);
        }
    })?;
    store.close()?;
    let lost: Vec<u64> = stage.acknowledged.iter().copied().filter(|version| !present.contains(version)).collect();
    promise(lost.is_empty(), || format!("acknowledged versions are lost: {lost:?}"))?;
    let kept = stage.acknowledged.len();
    let untold = head.version.saturating_sub(stage.acknowledged.last().copied().unwrap_or_default());
    promise(leases == 1, || format!("the writer's lease must be known as a dead process's, but {leases} are"))?;
    let drained = match bytes {
        0 => "Nothing had to be drained".to_owned(),
        bytes => format!("{} that only the database held were drained into the transcript", count(bytes, "byte")),
    };
    let beyond = match untold {
        0 => String::new(),
        more => format!(", and {more} more that it had not heard of yet"),
    };
    Ok(Shown {
        message: format!(
            "All {kept} acknowledged versions are there{beyond}: the thread is at version {}.\n{drained}, and the writer's lease died with it.",
            head.version
        ),
        details: json!({
            "acknowledged": kept, "lost": 0, "version": head.version, "drained_bytes": bytes, "dead_leases": leases
        }),
    })
}

/// Two processes append with the same `--expect`.
pub(super) fn race(stage: &mut Stage) -> Result<Shown> {
    let version = unchanged_up_to(&judge(stage)?);
    let mut writers = Vec::new();
    for name in ["ann", "bob"] {
        writers.push((name, start_racer(stage, name, version)?));
    }
    let mut outcomes = Vec::new();
    for (name, child) in writers {
        let output = child.wait_with_output().map_err(|error| Failure::io("wait for", &stage.program, &error))?;
        outcomes.push((name, output));
    }
    let won: Vec<_> = outcomes.iter().filter(|(_, output)| output.status.success()).collect();
    let lost: Vec<_> =
        outcomes.iter().filter(|(_, output)| output.status.code() == Some(Exit::Conflict as i32)).collect();
    let ([(winner, answer)], [(loser, refusal)]) = (won.as_slice(), lost.as_slice()) else {
        return Err(broken(format!("one must win and one must get a conflict, but: {outcomes:?}")));
    };
    let committed = last_json(&answer.stdout);
    let error = last_json(&refusal.stderr)["error"].clone();
    let (expected, actual) = (error["expected"].as_u64(), error["actual"].as_u64());
    promise(committed["version"] == version + 1 && expected == Some(version) && actual == Some(version + 1), || {
        format!("the answers don't fit: {committed} and {error}")
    })?;
    Ok(Shown {
        message: format!(
            "Both said `--expect {version}`. {winner} committed version {}.\n{loser} got a conflict, expected {version}, actual {}, and nothing of it was kept.",
            version + 1,
            version + 1
        ),
        details: json!({ "winner": winner, "loser": loser, "version": version + 1, "error": error }),
    })
}

fn start_racer(stage: &Stage, name: &str, version: u64) -> Result<Child> {
    let started = |error: io::Error| Failure::io("start", &stage.program, &error);
    let mut command = stage.another_process();
    command.args(["append", stage.thread.as_str(), "--expect", &version.to_string()]);
    let mut child = command.spawn().map_err(started)?;
    let changeset =
        json!({ "reason": "UserMessage", "messages": [{ "role": "user", "content": format!("{name} was first") }] });
    let stdin = child.stdin.take().ok_or_else(|| broken("the writer has no stdin"))?;
    write!(&stdin, "{changeset}").map_err(started)?;
    Ok(child)
}

fn last_json(bytes: &[u8]) -> Value {
    let line = bytes.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty()).unwrap_or_default();
    serde_json::from_slice(line).unwrap_or_default()
}

/// Every signature is checked.
pub(super) fn verify(stage: &mut Stage) -> Result<Shown> {
    let verdict = judge(stage)?;
    expect_sound(&verdict)?;
    let signer = verdict.signers.first().map(|(fingerprint, _)| *fingerprint).ok_or_else(|| broken("nobody signed"))?;
    let (version, signatures) =
        (unchanged_up_to(&verdict), verdict.signers.iter().map(|(_, count)| count).sum::<u64>());
    let key = key(&signer, &stage.user.trust()?);
    Ok(Shown {
        message: format!(
            "Unchanged up to version {version} since it was signed by key {key}: {} hold over {}.",
            count(signatures, "signature"),
            count(verdict.bytes, "byte")
        ),
        details: json!({ "unchanged_up_to": version, "signer": signer, "signatures": signatures, "bytes": verdict.bytes }),
    })
}

/// One bit of a message in the middle is flipped, and the damage is named.
pub(super) fn tamper(stage: &mut Stage) -> Result<Shown> {
    let store = stage.open(Access::ReadOnly)?;
    let file = stage.transcript(&store);
    drop(store);
    let target = stage.acknowledged[stage.acknowledged.len() / 2];
    let (line, byte, value) = find_words(&file, target)?;
    stage.flipped = Some((byte, value));
    put_byte(&file, byte, value ^ 1)?;
    let verdict = judge(stage)?;
    let Finding::Damaged(damage) = &verdict.judgement.finding else {
        return Err(broken(format!("a flipped bit was not found: {:?}", verdict.judgement)));
    };
    let named = damage.version == target && (damage.first_line..=damage.line).contains(&line);
    promise(named, || format!("the damage is at version {target}, line {line}, but was named as: {damage}"))?;
    promise(unchanged_up_to(&verdict) == target - 1, || "what is before the damage must still be proven".to_owned())?;
    Ok(Shown {
        message: format!(
            "Bit 0 of byte {}, in line {line}, was flipped. Unchanged only up to version {}.\nThe damage is in version {target}, lines {} to {}: {}.",
            grouped(byte),
            target - 1,
            damage.first_line,
            damage.line,
            damage.flaw
        ),
        details: json!({
            "byte": byte, "flipped_line": line, "version": damage.version, "first_line": damage.first_line,
            "line": damage.line, "why": damage.flaw.to_string(), "unchanged_up_to": target - 1, "file": file.display().to_string()
        }),
    })
}

/// The bit is put back, and everything holds again.
pub(super) fn restore(stage: &mut Stage) -> Result<Shown> {
    let store = stage.open(Access::ReadOnly)?;
    let file = stage.transcript(&store);
    drop(store);
    let (byte, value) = stage.flipped.take().ok_or_else(|| broken("nothing was flipped"))?;
    put_byte(&file, byte, value)?;
    let verdict = judge(stage)?;
    expect_sound(&verdict)?;
    let version = unchanged_up_to(&verdict);
    Ok(Shown {
        message: format!("Unchanged up to version {version} again."),
        details: json!({ "byte": byte, "unchanged_up_to": version }),
    })
}

/// The verdict of a reader that writes nothing.
fn judge(stage: &Stage) -> Result<Verdict> {
    let store: LocalStore = stage.open(Access::ReadOnly)?;
    Ok(store.verify(&stage.thread, &mut |_| {})?)
}

fn expect_sound(verdict: &Verdict) -> Result<()> {
    let judgement = &verdict.judgement;
    promise(judgement.finding == Finding::Sound, || format!("the log must be sound, but: {:?}", judgement.finding))
}

fn unchanged_up_to(verdict: &Verdict) -> u64 {
    verdict.judgement.unchanged_up_to.unwrap_or_default()
}

/// The line, counted from 1, that holds the words of a version, and the place and value of one of their bytes.
fn find_words(file: &Path, version: u64) -> Result<(u64, u64, u8)> {
    let failed = |error: io::Error| Failure::io("read", file, &error);
    let mut reader = BufReader::new(fs::File::open(file).map_err(failed)?);
    let (expected, mut line, mut number, mut at) = (words(version), Vec::new(), 0, 0);
    while next_line(&mut reader, &mut line).map_err(failed)? {
        number += 1;
        if let Some(offset) = line.windows(expected.len()).position(|window| window == expected.as_bytes()) {
            // The word `safe` becomes `rafe`: still JSON, still readable, and no longer what was signed.
            let within = expected.rfind("safe").unwrap_or_default();
            return Ok((number, at + (offset + within) as u64, line[offset + within]));
        }
        at += line.len() as u64;
    }
    Err(broken(format!("the words of version {version} are not in the log")))
}

fn put_byte(file: &Path, at: u64, value: u8) -> Result<()> {
    let failed = |error: io::Error| Failure::io("write", file, &error);
    let handle = OpenOptions::new().write(true).open(file).map_err(failed)?;
    handle.write_all_at(&[value], at).map_err(failed)?;
    handle.sync_all().map_err(failed)
}
