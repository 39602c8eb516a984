//! Steps on the log of the first agent, one function each. A step reports what it observed, and fails if that is not what was promised.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Child;

use selvedge_log::recovery::Finding;
use selvedge_store::verify::Verification;
use selvedge_store_local::Access;
use serde_json::{Value, json};

use super::StepResult;
use super::folder::DemoFolder;
use super::payday::find_amount;
use crate::error::{Exit, Failure, Result};
use crate::text::{count, key};

pub(super) fn broken(message: impl Into<String>) -> Failure {
    Failure::new(Exit::Failed, "demo_failed", message)
}

pub(super) fn promise(holds: bool, message: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(broken(message())) }
}

/// Two processes append with the same `--expect`.
pub(super) fn race(demo: &mut DemoFolder) -> Result<StepResult> {
    let version = unchanged_up_to(&judge(demo)?);
    let mut writers = Vec::new();
    for name in ["ann", "bob"] {
        writers.push((name, start_racer(demo, name, version)?));
    }
    let mut outcomes = Vec::new();
    for (name, child) in writers {
        let output = child.wait_with_output().map_err(|error| Failure::io("wait for", &demo.program, &error))?;
        outcomes.push((name, output));
    }
    let won: Vec<_> = outcomes.iter().filter(|(_, output)| output.status.success()).collect();
    let lost: Vec<_> =
        outcomes.iter().filter(|(_, output)| output.status.code() == Some(Exit::Conflict as i32)).collect();
    let ([(winner, answer)], [(loser, refusal)]) = (won.as_slice(), lost.as_slice()) else {
        return Err(broken(format!("expected one success and one conflict, but got: {outcomes:?}")));
    };
    let committed = last_json(&answer.stdout);
    let error = last_json(&refusal.stderr)["error"].clone();
    let expected = error["expected"].as_u64();
    let actual = error["actual"].as_u64();
    promise(committed["version"] == version + 1 && expected == Some(version) && actual == Some(version + 1), || {
        format!("unexpected answers: {committed} and {error}")
    })?;
    Ok(StepResult {
        message: format!(
            "Both used `--expect {version}`. {winner} committed version {}.\n{loser} got a conflict (expected {version}, actual {}), and nothing of it was committed.",
            version + 1,
            version + 1
        ),
        details: json!({ "winner": winner, "loser": loser, "version": version + 1, "error": error }),
    })
}

fn start_racer(demo: &DemoFolder, name: &str, version: u64) -> Result<Child> {
    let started = |error: io::Error| Failure::io("start", &demo.program, &error);
    let mut command = demo.another_process();
    command.args(["append", demo.thread()?.as_str(), "--expect", &version.to_string()]);
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

/// All signatures are verified.
pub(super) fn verify(demo: &mut DemoFolder) -> Result<StepResult> {
    let verdict = judge(demo)?;
    expect_sound(&verdict)?;
    let signer =
        verdict.signers.first().map(|(fingerprint, _)| *fingerprint).ok_or_else(|| broken("there is no signature"))?;
    let version = unchanged_up_to(&verdict);
    let signatures = verdict.signers.iter().map(|(_, count)| count).sum::<u64>();
    let key = key(&signer, &demo.user.trust()?);
    Ok(StepResult {
        message: format!(
            "Unchanged up to version {version} since it was signed by key {key}: {} over {} verified.",
            count(signatures, "signature"),
            count(verdict.bytes, "byte")
        ),
        details: json!({ "unchanged_up_to": version, "signer": signer, "signatures": signatures, "bytes": verdict.bytes }),
    })
}

/// One bit is flipped, 80 becomes 81, and the damage is located.
pub(super) fn tamper(demo: &mut DemoFolder) -> Result<StepResult> {
    let file = demo.transcript()?;
    let (line, version, byte) = find_amount(&file)?;
    demo.flipped = Some(byte);
    put_byte(&file, byte, b'1')?;
    let verdict = judge(demo)?;
    let Finding::Damaged(damage) = &verdict.judgement.finding else {
        return Err(broken(format!("the flipped bit was not detected: {:?}", verdict.judgement)));
    };
    let named = damage.version == version && (damage.first_line()..=damage.line).contains(&line);
    promise(named, || format!("the damage is at version {version}, line {line}, but was reported as: {damage}"))?;
    promise(unchanged_up_to(&verdict) == version - 1, || {
        "the versions before the damage must still be proven".to_owned()
    })?;
    Ok(StepResult {
        message: format!(
            "Line {line} now says that ben should get 81. The log is unchanged only up to version {}.\nThe damage is in version {version}, lines {} to {}: {}.",
            version - 1,
            damage.first_line(),
            damage.line,
            damage.flaw
        ),
        details: json!({
            "byte": byte, "flipped_line": line, "version": damage.version, "first_line": damage.first_line(),
            "line": damage.line, "why": damage.flaw.to_string(), "unchanged_up_to": version - 1, "file": file.display().to_string()
        }),
    })
}

/// The bit is restored, and everything verifies again.
pub(super) fn restore(demo: &mut DemoFolder) -> Result<StepResult> {
    let byte = demo.flipped.take().ok_or_else(|| broken("nothing was flipped"))?;
    put_byte(&demo.transcript()?, byte, b'0')?;
    let verdict = judge(demo)?;
    expect_sound(&verdict)?;
    let version = unchanged_up_to(&verdict);
    Ok(StepResult {
        message: format!("Unchanged up to version {version} again."),
        details: json!({ "byte": byte, "unchanged_up_to": version }),
    })
}

/// The verdict of a reader that writes nothing.
fn judge(demo: &DemoFolder) -> Result<Verification> {
    let store = demo.open(Access::ReadOnly)?;
    Ok(store.verify(demo.thread()?, &mut |_| {})?)
}

fn expect_sound(verdict: &Verification) -> Result<()> {
    let judgement = &verdict.judgement;
    promise(judgement.finding == Finding::Sound, || format!("the log must be sound, but: {:?}", judgement.finding))
}

fn unchanged_up_to(verdict: &Verification) -> u64 {
    verdict.judgement.unchanged_up_to.unwrap_or_default()
}

fn put_byte(file: &Path, at: u64, value: u8) -> Result<()> {
    let failed = |error: io::Error| Failure::io("write", file, &error);
    let handle = OpenOptions::new().write(true).open(file).map_err(failed)?;
    handle.write_all_at(&[value], at).map_err(failed)?;
    handle.sync_all().map_err(failed)
}
