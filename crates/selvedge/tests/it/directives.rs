//! Threads of directives: their prompts, and what they keep when the directive changes.

use std::sync::{Arc, Mutex};

use selvedge::model::tool::Risk;
use selvedge::model::{Cancel, Classify, DirectiveId, Kind, Status, TaskId};
use selvedge::project::{ProjectError, RunOptions};
use serde_json::json;

use crate::support::{House, Listening, Ran, results};

fn with_context(house: &House, context: &str) {
    let head = format!("name: use\ndescription: Uses things.\ncontext: {context}");
    house.write(".ai/directives/use.md", &format!("---\n{head}\n---\n\nThe body.\n"));
    house.script(&json!([{"say": "Done.", "repeat": "forever"}]));
}

/// Runs a directive; gives what the model was shown at each turn too.
fn listened(house: &House) -> (Ran, Vec<String>) {
    let mut heard = None;
    let ran = house.run_until("use", &Cancel::new(), |order| {
        let listening = Listening { inner: order.run_config.model.clone(), heard: Mutex::default() };
        order.run_config.model = heard.insert(Arc::new(listening)).clone();
    });
    let heard = heard.unwrap().heard.lock().unwrap().clone();
    (ran, heard)
}

/// An edited directive let an existing thread call tools whose risk had not been acknowledged.
#[test]
fn a_later_acknowledgement_does_not_widen_an_existing_thread() {
    let acknowledging = |acknowledge: &str| {
        let permissions = format!("{{allow: [tool.wipe], acknowledge: {acknowledge}}}");
        format!("---\nname: use\npermissions: {permissions}\n---\n\nUse the tool.\n")
    };
    let some = acknowledging("[{risk: dangerous, why: It must be wiped.}]");
    let none = acknowledging("[]");
    for (at_birth, today, runs, recorded) in [(&none, &some, 0, &[][..]), (&some, &none, 2, &[Risk::Dangerous][..])] {
        let house = House::new();
        house.tool("wipe", "pure", "echo wiped >> wiped", json!({"risk": "dangerous"}));
        house.script(&json!([
            {"calls": [{"tool": "wipe", "arguments": {}}]}, {"say": "Done."},
            {"calls": [{"tool": "wipe", "arguments": {}}]}, {"say": "Done again."},
        ]));
        house.write(".ai/directives/use.md", at_birth);
        let ran = house.run("use");
        assert_eq!(ran.thread.manifest.acknowledged, recorded);
        house.write(".ai/directives/use.md", today);
        let ran = house.send(&ran.ended.thread_id, "Again.");
        assert_eq!((ran.ended.status.status().unwrap(), results(&ran.thread).len()), (Status::Completed, 2));
        let wiped = std::fs::read_to_string(house.root.join("wiped")).unwrap_or_default();
        assert_eq!(wiped.lines().count(), runs, "{recorded:?}");
    }
}

#[test]
fn knowledge_of_a_directive_is_placed_in_the_prompt_unchanged() {
    let house = House::new();
    with_context(&house, "{system: [style/tone], before: [facts], after: [last]}");
    house.write(".ai/knowledge/style/tone.md", "```yaml\nname: tone\ntitle: Tone\n```\n\nBe kind to {input:x}.\n");
    house.write(".ai/knowledge/facts.md", "---\ntitle: Facts\n---\nWater is wet.\n");
    house.write(".ai/knowledge/last.md", "Check twice.\n");
    let (ran, heard) = listened(&house);
    assert_eq!(ran.ended.status, Status::Completed);
    let shown: serde_json::Value = serde_json::from_str(&heard[0]).unwrap();
    let tone = "<knowledge id=\"style/tone\">\nBe kind to {input:x}.\n</knowledge>";
    assert_eq!(shown["system"], json!(format!("Uses things.\n\n{tone}")));
    let marked = |id: &str, text: &str| format!("<knowledge id=\"{id}\">\n{text}\n</knowledge>");
    let said = [marked("facts", "Water is wet."), "The body.".to_owned(), marked("last", "Check twice.")];
    assert_eq!(ran.thread.messages[0].plain_text(), said.join("\n\n"));
}

#[test]
fn missing_knowledge_is_an_error_with_file_and_line() {
    let house = House::new();
    house.write(".ai/directives/base.md", "---\nname: base\ncontext:\n  system:\n    - style/tone\n---\n\nThe body.\n");
    house.write(".ai/directives/use.md", "---\nname: use\nextends: base\n---\n");
    house.script(&json!([{"say": "Done.", "repeat": "forever"}]));
    for (name, line, more) in [("style/tone", 5, "no knowledge"), ("../secret", 5, "knowledge")] {
        let base = format!("---\nname: base\ncontext:\n  system:\n    - {name}\n---\n\nThe body.\n");
        house.write(".ai/directives/base.md", &base);
        let error = house.prepare("use").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("directives/base.md") && text.contains(&format!("line {line}")), "{text}");
        assert!(text.contains(name) && (name != "style/tone" || text.contains(more)), "{text}");
        assert!(error.hint().is_some());
    }
    // A thread does not go on without what it must know.
    house.write(".ai/directives/base.md", "---\nname: base\ncontext: {system: [facts]}\n---\n\nThe body.\n");
    house.write(".ai/knowledge/facts.md", "Water is wet.\n");
    let ran = house.run("use");
    std::fs::remove_file(house.root.join(".ai/knowledge/facts.md")).unwrap();
    assert!(house.project().run_config(&ran.thread.manifest).is_err());
}

#[test]
fn the_text_of_a_task_is_in_the_system_prompt_of_its_runs() {
    let house = House::new();
    with_context(&house, "{}");
    let task = Some(TaskId::new("17").unwrap());
    let options = || RunOptions { task: task.clone(), ..RunOptions::default() };
    let id = DirectiveId::new("use").unwrap();
    let error = house.project().prepare(&id, options()).unwrap_err();
    assert!(matches!(&error, ProjectError::Item(_)) && error.to_string().contains("tasks/17"), "{error}");
    house.write(".ai/knowledge/tasks/17.md", "---\ntitle: Tea\n---\nMake tea for Anna.\n");
    let order = house.project().prepare(&id, options()).unwrap();
    let rules = "Uses things.\n\n<task>\nMake tea for Anna.\n</task>";
    assert_eq!((order.run_config.system.as_str(), &order.thread.task_id), (rules, &task));
    let engine = house.engine(Arc::new(house.open()));
    let thread = engine.create(order.thread, Vec::new()).unwrap();
    let manifest = engine.store().get(&thread).unwrap().manifest;
    // What is written there counts when the run begins; a missing task makes no thread unusable.
    house.write(".ai/knowledge/tasks/17.md", "Make coffee for Anna.\n");
    assert!(house.project().run_config(&manifest).unwrap().system.contains("Make coffee"));
    std::fs::remove_file(house.root.join(".ai/knowledge/tasks/17.md")).unwrap();
    let work = house.project().run_config(&manifest).unwrap();
    assert_eq!((work.system.as_str(), work.notices.len()), ("Uses things.", 1));
    assert!(work.notices[0].contains("task `17` is missing"), "{:?}", work.notices);
}

/// The line was counted from the body, and the file was not named.
#[test]
fn a_body_with_a_missing_input_is_reported_with_file_and_line() {
    let house = House::new();
    house.script(&json!([{"say": "Done."}]));
    house.write(".ai/directives/base.md", "---\nname: base\n---\n\nFirst.\nSecond, {env:HOME}.\n");
    house.write(".ai/directives/use.md", "---\nname: use\nextends: base\nversion: 1.0.0\n---\n");
    let error = house.prepare("use").unwrap_err();
    let text = error.to_string();
    assert!(text.contains("directives/base.md` can't be filled in: line 6: `{env:HOME}` is not allowed"), "{text}");
    assert_eq!((error.kind(), error.code()), (Kind::Denied, "interpolation_not_allowed"));
}

#[test]
fn an_unacknowledged_dangerous_tool_is_not_offered_with_a_notice() {
    let house = House::new();
    house.tool("wipe", "pure", "echo wiped", json!({"risk": "dangerous"}));
    house.tool("look", "pure", "echo seen", json!({}));
    house.directive("use", &["wipe", "look"], "Use the tools.");
    house.script(&json!([{"say": "Done."}]));
    let order = house.prepare("use").unwrap();
    let offered: Vec<_> = order.run_config.offered().map(|spec| spec.name.as_str()).collect();
    assert_eq!(offered, ["look"]);
    assert!(
        matches!(&order.notices[..], [one] if one.contains("`wipe`") && one.contains("acknowledge")),
        "{:?}",
        order.notices
    );
    house.directive("use", &["look"], "Look.");
    assert_eq!(
        house.prepare("use").unwrap().notices,
        Vec::<String>::new(),
        "what it may not call anyway is not told of"
    );
}

/// A command that could not be read let the tool of the same name through that comes with the program.
#[test]
fn a_tool_of_the_project_takes_precedence_even_if_it_is_invalid() {
    let house = House::new();
    house.write(".ai/tools/file_write.yaml", "name: file_write\n");
    house.tool("pay", "pure", "echo one", json!({}));
    let tool = std::fs::read_to_string(house.root.join(".ai/tools/pay.yaml")).unwrap();
    house.write(".ai/tools/a/pay.yaml", &tool);
    let tools = house.project().tools().unwrap();
    let names: Vec<_> = tools.ready.iter().map(|tool| tool.spec().name.as_str()).collect();
    assert_eq!(names, ["file_read", "file_edit", "file_list", "file_glob", "file_grep", "web.fetch", "pay"]);
    assert_eq!(tools.notices.len(), 2, "{:?}", tools.notices);
    assert!(tools.notices.iter().any(|notice| notice.contains("`pay` is not used: `a/pay` has the same name `pay`")));
}
