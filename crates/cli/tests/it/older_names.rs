//! Directives of older documents: the names of their thread tools and permissions, and warnings about what would silently do nothing.

use std::fs;

use serde_json::Value;

use crate::children::{PAYS, calling, family};
use crate::running::put;
use crate::support::{Ran, Sandbox};

const SPAWN: &str = "{ tool: rye/agent/threads/thread_directive, arguments: { directive_id: child, inputs: {}, limit_overrides: { turns: 3 } } }";

/// A family whose parent has these permissions and this body.
fn older(permissions: &str, body: &str, calls: &str) -> Sandbox {
    let sandbox = family(&calling(calls), PAYS);
    let parent = format!("---\nname: parent\nmodel: scripted:script.yaml\npermissions: [{permissions}]\n---\n{body}\n");
    put(&sandbox, ".ai/directives/parent.md", &parent);
    sandbox
}

fn heard(ran: &Ran) -> String {
    ran.records().pop().unwrap()["result"].as_str().unwrap_or_default().to_owned()
}

fn run(sandbox: &Sandbox) -> Ran {
    sandbox.run(&["run", "parent", "--json"])
}

#[test]
fn older_names_start_a_child_and_look_at_it() {
    let sandbox = older("rye.agent.threads.*, tool.pay", "Delegate.", SPAWN);
    let ran = run(&sandbox);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(heard(&ran).contains("The child is done."), "{ran:?}");
    let threads = sandbox.run(&["thread", "list", "--json"]).json();
    let child = threads["threads"].as_array().unwrap().iter().find(|found| found["directive"] == "child").unwrap();
    let child = child["thread_id"].as_str().unwrap().to_owned();

    let status = format!(
        "{{ tool: rye/agent/threads/orchestrator, arguments: {{ operation: get_status, thread_id: {child} }} }}"
    );
    let sandbox_script = calling(&status);
    put(&sandbox, "script.yaml", &sandbox_script);
    let ran = run(&sandbox);
    assert!(heard(&ran).contains("completed"), "{ran:?}");

    let wait =
        "{ tool: selvedge/agent/threads/orchestrator, arguments: { operation: wait_threads, thread_ids: [CHILD, 7] } }";
    put(&sandbox, "script.yaml", &calling(&wait.replace("CHILD", &child)));
    let ran = run(&sandbox);
    let said = heard(&ran);
    assert!(said.contains("completed") && said.contains("__failed_1"), "{ran:?}");
}

#[test]
fn a_permission_for_the_older_orchestrator_starts_no_child() {
    let sandbox = older("rye.agent.threads.orchestrator", "Look.", SPAWN);
    let said = heard(&run(&sandbox));
    assert!(said.contains("no capability `tool.threads.spawn`"), "{said}");
    let sandbox = older(
        "rye.agent.threads.thread_directive",
        "Look.",
        "{ tool: rye/agent/threads/orchestrator, arguments: { operation: list_active } }",
    );
    let said = heard(&run(&sandbox));
    assert!(said.contains("no capability `tool.threads.list`"), "{said}");
}

#[test]
fn unknown_operations_and_arguments_of_older_names_are_told_to_the_model() {
    let tell = |call: &str| heard(&run(&older("rye.agent.threads.*", "Go.", call)));
    let said = tell("{ tool: rye/agent/threads/orchestrator, arguments: { operation: dance } }");
    assert!(said.contains("there is no operation `dance`; there are wait_threads"), "{said}");
    let said = tell("{ tool: rye/agent/threads/orchestrator, arguments: {} }");
    assert!(said.contains("`operation` is missing"), "{said}");
    let said = tell(
        "{ tool: rye/agent/threads/thread_directive, arguments: { directive_id: child, parent_thread_id: other } }",
    );
    assert!(said.contains("`parent_thread_id` is `other`"), "{said}");
    let said =
        tell("{ tool: rye/agent/threads/thread_directive, arguments: { directive_id: child, resume_messages: [] } }");
    assert!(said.contains("`resume_thread` continues a thread"), "{said}");
}

/// A rule for the tool must not be avoided by calling it under another name.
#[test]
fn an_approval_rule_for_a_tool_holds_for_its_older_name() {
    let sandbox = older("rye.agent.threads.*", "Delegate.", SPAWN);
    put(&sandbox, ".ai/config/agent/approvals.yaml", "rules: [{id: ask, tool: spawn_thread, action: ask}]\n");
    let ran = run(&sandbox);
    assert_eq!(ran.code, Some(7), "{ran:?}");
    put(
        &sandbox,
        ".ai/config/agent/approvals.yaml",
        "rules: [{id: no, tool: spawn_thread, action: deny, reason: never}]\n",
    );
    let said = heard(&run(&sandbox));
    assert!(said.contains("never (`approvals.rules.no`)"), "{said}");
}

#[test]
fn a_model_is_offered_an_older_name_only_if_the_directive_uses_it() {
    let offered = |body: &str| {
        let sandbox = older("rye.agent.threads.*", body, SPAWN);
        let thread = run(&sandbox).records().pop().unwrap()["thread_id"].as_str().unwrap().to_owned();
        fs::read_to_string(sandbox.threads().join(thread).join("capabilities.md")).unwrap()
    };
    assert!(!offered("Delegate.").contains("rye"), "the tools of today are enough");
    let page = offered("Call `rye/agent/threads/orchestrator` with an operation.");
    assert!(page.contains("\"rye_agent_threads_orchestrator\""), "{page}");
    assert!(!page.contains("thread_directive") && !page.contains("\"rye/"), "{page}");
}

#[test]
fn permissions_hooks_inputs_and_continuations_that_do_nothing_are_warned_about() {
    let sandbox = Sandbox::new();
    let directive = "---\nname: doubtful\npermissions: [tool.fiel.read, tool.nothing.like.it, 'tool.file.*', rye.fetch.*]\n\
                     continuation_directive: gone/away\n\
                     hooks:\n  - {id: greet, event: thread_started, action: {primary: execute, item_type: tool, item_id: x}}\n---\n\
                     Read.\n";
    put(&sandbox, ".ai/directives/doubtful.md", directive);
    put(&sandbox, ".ai/directives/input.md", "---\nname: input\n---\nGreet {input:name}.\n");
    let checked = sandbox.run(&["directive", "check", "doubtful", "--json"]).json();
    let warnings: Vec<&str> = checked["warnings"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let has = |part: &str| warnings.iter().any(|warning| warning.contains(part));
    assert!(has("the permission `tool.nothing.like.it` matches no tool"), "{warnings:?}");
    assert!(has("`tool.fiel.read` matches no tool; did you mean `tool.file.read`?"), "{warnings:?}");
    assert!(!has("`selvedge.fetch.*`") && !has("`tool.file.*`"), "{warnings:?}");
    assert!(has("an action of hook `greet` can't be made: there is no tool `x`"), "{warnings:?}");
    assert!(has("continuation directive `gone/away` can't be used"), "{warnings:?}");
    let checked = sandbox.run(&["directive", "check", "input", "--json"]).json();
    assert_eq!(checked["warnings"][0], "its body names the input `name`, which is not declared");

    let ran = sandbox.run(&["run", "doubtful"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for part in ["`tool.nothing.like.it` matches no tool", "there is no tool `x`"] {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
}
