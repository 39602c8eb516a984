//! Helpers of the tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use selvedge_model::event::{EffectClass, Process};
use selvedge_model::tool::{CommandSpec, Risk, Stdin};
use selvedge_model::{Call, CallId, Cancel, Output, RunId, ThreadId, Tool, ToolError};
use selvedge_tools::{CommandEnvironment, CommandTool};
use serde_json::{Value, json};

pub(crate) fn call(name: &str, arguments: Value) -> Call {
    Call {
        thread: ThreadId::new("scribe-0123456789ab").unwrap(),
        run: RunId::new("run1").unwrap(),
        id: CallId::new("call_1").unwrap(),
        name: name.to_owned(),
        arguments,
        key: "key1".to_owned(),
    }
}

/// Starts and dispatches a call.
pub(crate) fn use_tool(tool: &dyn Tool, arguments: Value) -> Result<Output, ToolError> {
    tool.start(&call(&tool.spec().name, arguments))?.dispatch(&Cancel::new()).wait()
}

/// A command that runs a shell script with the call's `a` as its first argument, if there is one.
pub(crate) fn script(script: &str) -> CommandSpec {
    CommandSpec {
        state: Vec::new(),
        sandbox: None,
        name: "tool".to_owned(),
        description: "A tool.".to_owned(),
        input_schema: json!({"type": "object", "properties": {"a": {}}, "additionalProperties": false}),
        command: ["/bin/sh", "-c", script, "script", "{input:a?}"].map(str::to_owned).to_vec(),
        stdin: Stdin::None,
        timeout_seconds: 60,
        output_bytes_max: 10_000,
        environment: vec!["PATH".to_owned()],
        working_folder: None,
        class: EffectClass::Pure,
        reconcile: None,
        capability: "tool.tool".to_owned(),
        risk: Risk::Safe,
    }
}

pub(crate) fn at_most_once(text: &str) -> CommandSpec {
    CommandSpec { class: EffectClass::AtMostOnce, ..script(text) }
}

/// The tool in a project of its own, with the `PATH` of these tests.
pub(crate) fn tool_in(root: &Path, spec: CommandSpec) -> CommandTool {
    CommandTool::new(spec, &around(root)).unwrap()
}

pub(crate) fn around(root: &Path) -> CommandEnvironment {
    let path = ("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned());
    CommandEnvironment { root: root.to_owned(), environment: BTreeMap::from([path]), sandbox: None }
}

pub(crate) fn tool(spec: CommandSpec) -> CommandTool {
    tool_in(&std::env::temp_dir(), spec)
}

pub(crate) fn text(output: &Output) -> &str {
    output.content.as_str().unwrap()
}

/// Whether a process exists and is not just a zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[track_caller]
pub(crate) fn eventually(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < until, "it never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The process id that a tool wrote into a file.
#[track_caller]
pub(crate) fn pid_in(file: &Path) -> u32 {
    let read = || fs::read_to_string(file).ok().and_then(|text| text.strip_suffix('\n')?.parse().ok());
    eventually("a process wrote its id", || read().is_some());
    read().unwrap()
}

pub(crate) fn project() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    (folder, path)
}

/// The identity of a process, as these tests read it.
pub(crate) fn identity(pid: u32) -> Process {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let start_time = stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap().parse().unwrap();
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned();
    Process { pid, start_time, boot_id: Some(boot_id) }
}
