//! An agent that pays, is killed in the middle of a payment, and is resumed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use selvedge_model::ThreadId;
use serde_json::{Value, json};

use super::StepResult;
use super::folder::DemoFolder;
use super::log_steps::{broken, promise};
use crate::error::{Failure, Result};

/// The files of the project for these steps.
pub(super) const FILES: [(&str, &str); 6] = [
    (".ai/directives/payday.md", include_str!("project/payday.md")),
    (".ai/agents/cashier.yaml", include_str!("project/cashier.yaml")),
    (".ai/tools/pay.yaml", include_str!("project/pay.yaml")),
    ("cashier-script.yaml", include_str!("project/cashier-script.yaml")),
    ("pay.sh", include_str!("project/pay.sh")),
    ("was-it-paid.sh", include_str!("project/was-it-paid.sh")),
];
/// The file that the tool writes: one line for each payment.
const PAID: &str = "paid.txt";
/// How long the second payment may take to start.
const TIMEOUT: Duration = Duration::from_secs(60);
const SIGKILL: i32 = 9;

/// The agent runs, and is killed when its second payment is made and its outcome is not yet recorded.
pub(super) fn kill(demo: &mut DemoFolder) -> Result<StepResult> {
    let child = start(demo, &["run", "payday", "--agent", "cashier", "--input", "month=May"])?;
    let pid = child.id();
    let deadline = Instant::now() + TIMEOUT;
    while paid(demo).len() < 2 && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
    }
    let (records, signal, stderr) = end(child)?;
    promise(signal == Some(SIGKILL), || format!("the agent was not killed: {stderr}"))?;
    let thread = records.iter().find_map(|record| record["thread_id"].as_str());
    demo.thread = thread.and_then(|thread| ThreadId::new(thread).ok());
    let paid = paid(demo);
    let answers = records.iter().filter(|record| record["event_type"] == "tool_outcome").count();
    promise(paid == ["anna 120", "ben 80"] && answers == 1, || {
        format!("expected two payments and one outcome, but got {paid:?} and {answers}")
    })?;
    Ok(StepResult {
        message: format!(
            "It paid anna, and the outcome was recorded. It paid ben, and SIGKILL ended process {pid} before the outcome was recorded.\n\
             {PAID} has 2 payments, the log 1 outcome: the outcome of the second payment is unknown."
        ),
        details: json!({ "pid": pid, "signal": SIGKILL, "paid": paid, "answers": answers }),
    })
}

/// Another process resumes the thread: finished calls are not repeated, and the tool is asked for the unknown outcome.
pub(super) fn resume(demo: &mut DemoFolder) -> Result<StepResult> {
    let thread = demo.thread()?.to_string();
    let child = start(demo, &["resume", &thread])?;
    let output = child.wait_with_output().map_err(|error| Failure::io("wait for", &demo.program, &error))?;
    let records = records(&output.stdout[..]);
    let called: Vec<&Value> = records.iter().filter(|record| record["type"] == "calling").collect();
    let reconciled = records.iter().filter(|record| record["event_type"] == "tool_outcome").count() - called.len();
    let paid = paid(demo);
    let is_done = output.status.success() && paid == ["anna 120", "ben 80", "cara 45"];
    promise(is_done && called.len() == 1 && called[0]["arguments"]["to"] == "cara" && reconciled == 1, || {
        let stderr = String::from_utf8_lossy(&output.stderr);
        format!("{PAID} has {paid:?}, calls: {called:?}, {reconciled} reconciled: {}", stderr.trim())
    })?;
    Ok(StepResult {
        message: format!(
            "The tool was asked whether ben's payment was made: it was, so it was not repeated.\n\
             Then cara was paid. {PAID} has 3 payments, each once; 0 calls were repeated."
        ),
        details: json!({ "paid": paid, "called": called.len(), "reconciled": reconciled, "repeated": 0 }),
    })
}

/// The payments that were made, without their keys.
fn paid(demo: &DemoFolder) -> Vec<String> {
    let text = fs::read_to_string(demo.project.join(PAID)).unwrap_or_default();
    let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    lines.filter_map(|line| line.split_once(' ')).map(|(_, payment)| payment.to_owned()).collect()
}

fn start(demo: &DemoFolder, words: &[&str]) -> Result<Child> {
    demo.another_process().args(words).spawn().map_err(|error| Failure::io("start", &demo.program, &error))
}

/// Kills a process; returns its records, the signal that ended it, and its stderr.
fn end(mut child: Child) -> Result<(Vec<Value>, Option<i32>, String)> {
    let ended = |error: std::io::Error| Failure::io("end", Path::new("the agent"), &error);
    child.kill().map_err(ended)?;
    let output = child.wait_with_output().map_err(ended)?;
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Ok((records(&output.stdout[..]), output.status.signal(), stderr))
}

/// The objects of a stream, one per line; an incomplete line is ignored.
pub(super) fn records(stream: &[u8]) -> Vec<Value> {
    BufReader::new(stream)
        .lines()
        .map_while(std::io::Result::ok)
        .filter_map(|line| serde_json::from_str(&line).ok())
        .collect()
}

/// The position of the amount that ben was paid: the line, counted from 1, its version, and the byte of the last digit.
pub(super) fn find_amount(transcript: &Path) -> Result<(u64, u64, u64)> {
    let bytes = fs::read(transcript).map_err(|error| Failure::io("read", transcript, &error))?;
    let amount = br#""amount":80"#;
    let mut at = 0;
    let mut version = 0;
    for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        if let Some(offset) = line.windows(amount.len()).position(|window| window == amount) {
            return Ok((index as u64 + 1, version, (at + offset + amount.len() - 1) as u64));
        }
        let mark = br#""event_type":"checkpoint""#;
        version += u64::from(line.windows(mark.len()).any(|window| window == mark));
        at += line.len();
    }
    Err(broken("the payment to ben is not in the log"))
}
