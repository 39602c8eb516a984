//! Three steps, each in processes of their own: a gift that needs approval, a child that exceeds its budget, and a job that is longer
//! than the model's context window.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use super::StepResult;
use super::folder::DemoFolder;
use super::log_steps::{broken, promise};
use super::payday::records;
use crate::error::{Exit, Failure, Result};

/// The files of the project for these steps.
pub(super) const FILES: [(&str, &str); 11] = [
    (".ai/config/agent/approvals.yaml", include_str!("project/approvals.yaml")),
    (".ai/directives/present.md", include_str!("project/present.md")),
    (".ai/directives/books.md", include_str!("project/books.md")),
    (".ai/directives/audit.md", include_str!("project/audit.md")),
    (".ai/directives/stock.md", include_str!("project/stock.md")),
    (".ai/tools/give.yaml", include_str!("project/give.yaml")),
    (".ai/tools/count.yaml", include_str!("project/count.yaml")),
    ("present-script.yaml", include_str!("project/present-script.yaml")),
    ("books-script.yaml", include_str!("project/books-script.yaml")),
    ("audit-script.yaml", include_str!("project/audit-script.yaml")),
    ("stock-script.yaml", include_str!("project/stock-script.yaml")),
];
/// How many shelves there are to count.
const SHELVES: usize = 9;

/// The exit code and output of another process.
struct ProcessResult {
    exit: Option<i32>,
    records: Vec<Value>,
    stderr: String,
}

impl ProcessResult {
    fn by(demo: &DemoFolder, words: &[&str]) -> Result<Self> {
        let failed = |error: std::io::Error| Failure::io("run", &demo.program, &error);
        let mut command = demo.another_process();
        command.stdin(std::process::Stdio::null());
        let output = command.args(words).output().map_err(failed)?;
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Ok(Self { exit: output.status.code(), records: records(&output.stdout), stderr })
    }

    /// The same for a process that must end with this exit code.
    fn ending(demo: &DemoFolder, words: &[&str], exit: i32) -> Result<Self> {
        let ran = Self::by(demo, words)?;
        promise(ran.exit == Some(exit), || {
            format!("`selvedge {}` ended with {:?}: {}", words.join(" "), ran.exit, ran.stderr)
        })?;
        Ok(ran)
    }

    fn first(&self) -> &Value {
        self.records.first().unwrap_or(&Value::Null)
    }

    fn thread(&self) -> Result<&str> {
        text(&self.first()["thread_id"])
    }
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().ok_or_else(|| broken("a field of the output is missing"))
}

fn lines(demo: &DemoFolder, file: &str) -> Vec<String> {
    let text = fs::read_to_string(demo.project.join(file)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// A call that needs approval waits without any process; once approved, it is made once.
pub(super) fn approve(demo: &mut DemoFolder) -> Result<StepResult> {
    let asked = ProcessResult::ending(demo, &["run", "present"], Exit::Decision as i32)?;
    let thread = asked.thread()?;
    let inbox = ProcessResult::ending(demo, &["inbox"], 0)?;
    let need = inbox.first();
    let call = text(&need["call_id"])?;
    let tool = text(&need["tool"])?;
    let arguments = &need["arguments"];
    let given = lines(demo, "given.txt");
    promise(need["thread_id"] == thread && inbox.records.len() == 1 && given.is_empty(), || {
        format!("expected one pending call and no gift, but got: {:?}, {given:?}", inbox.records)
    })?;
    ProcessResult::ending(demo, &["approve", call, "--thread", thread], 0)?;
    let given = lines(demo, "given.txt");
    promise(given == ["dora 500"], || format!("expected one gift, but got: {given:?}"))?;
    Ok(StepResult {
        message: format!(
            "`{tool} {arguments}` is pending approval in `selvedge inbox`, signed into the log; no process is running.\n\
             After `selvedge approve {call}`, another process makes the call. given.txt has 1 line."
        ),
        details: json!({ "thread_id": thread, "call_id": call, "tool": tool, "arguments": arguments, "given": given }),
    })
}

/// The budget of a child is lower than the possible cost of its first call: the call is not made.
pub(super) fn budget(demo: &mut DemoFolder) -> Result<StepResult> {
    let ran = ProcessResult::ending(demo, &["run", "books", "--limit", "spend=0.05"], 0)?;
    let parent = ran.thread()?.to_owned();
    let tree = ProcessResult::ending(demo, &["tree", &parent], 0)?;
    let child = text(&tree.first()["children"][0]["thread_id"])?.to_owned();
    let shown = ProcessResult::ending(demo, &["thread", "show", &child], 0)?;
    let turns = &shown.first()["cost"]["turns"];
    let why = text(&shown.first()["runs"][0]["termination_detail"])?;
    let books = ProcessResult::ending(demo, &["budget", &parent, "--verify"], 0)?;
    let verified = &books.first()["verified"];
    let own = |account: &Value| account["own_nanos"].as_u64().unwrap_or_default();
    let accounts = books.first()["accounts"].as_array().cloned().unwrap_or_default();
    let spent: Vec<u64> = accounts.iter().map(own).collect();
    let is_parent_alone = matches!(spent[..], [own, 0] if own > 0);
    promise(turns == 0 && is_parent_alone && verified["holds"] == true, || {
        format!("expected no spending by the child, but got: {turns} turns, {spent:?} nano-dollars, {verified}")
    })?;
    let dollars = spent[0] as f64 / 1e9;
    Ok(StepResult {
        message: format!(
            "The parent may spend $0.05, and gives its child $0.01 of it. The child is suspended before its first model call:\n\
             {why}.\n\
             ${dollars} is spent, nothing by the child. The signed logs prove that no ceiling was exceeded at any of {} postings.",
            verified["postings"]
        ),
        details: json!({ "thread_id": parent, "child": child, "calls": turns, "spent_nanos": spent, "why": why, "verified": verified }),
    })
}

/// A job that does not fit into the model's context window is handed off from thread to thread.
pub(super) fn handoff(demo: &mut DemoFolder) -> Result<StepResult> {
    let ran = ProcessResult::ending(demo, &["run", "stock"], 0)?;
    let chain = ProcessResult::ending(demo, &["chain", ran.thread()?], 0)?;
    let links = chain.first()["chain"].as_array().cloned().unwrap_or_default();
    let ids = links.iter().map(|link| text(&link["thread_id"])).collect::<Result<Vec<_>>>()?;
    let counted = lines(demo, "counted.txt");
    let (last, earlier) = links.split_last().ok_or_else(|| broken("there is no chain"))?;
    let is_whole = earlier.iter().all(|link| link["status"] == "continued") && last["status"] == "completed";
    // Every call has its own key: no call was made twice.
    let keys: BTreeSet<&String> = counted.iter().collect();
    promise(is_whole && ids.len() > 2 && counted.len() == SHELVES && keys.len() == SHELVES, || {
        format!("expected a chain and {SHELVES} shelves, but got: {links:?}, {counted:?}")
    })?;
    for id in &ids {
        ProcessResult::ending(demo, &["verify", id], 0)?;
    }
    Ok(StepResult {
        message: format!(
            "Whenever the context window of 440 tokens was nearly full, the thread was handed off to a successor, in one commit:\n\
             {}\n\
             One execution in {} threads: all {SHELVES} shelves are counted, each once.",
            ids.join(" → "),
            ids.len()
        ),
        details: json!({ "chain": ids, "counted": counted.len() }),
    })
}
