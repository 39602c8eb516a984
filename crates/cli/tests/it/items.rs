//! `selvedge agent`, `directive` and `tool`: items listed and checked.

use std::fs;

use serde_json::{Value, json};

use crate::support::{Ran, Sandbox};

fn put(sandbox: &Sandbox, name: &str, text: &str) {
    let file = sandbox.project().join(name);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}

const WEEKLY: &str = "---\nname: weekly\nversion: 1.2.0\ndescription: Reports.\nextends: base\ninputs: [{ name: city, required: true }]\n---\nReport on {input:city}.\n";
const BASE: &str = "---\nname: base\nversion: 1.0.0\npermissions: [tool.file.read]\n---\nBe brief.\n";

fn with_directives() -> Sandbox {
    let sandbox = Sandbox::new();
    put(&sandbox, ".ai/directives/reports/weekly.md", WEEKLY);
    put(&sandbox, ".ai/directives/base.md", BASE);
    sandbox
}

fn of<'a>(records: &'a [Value], id: &str) -> &'a Value {
    records.iter().find(|record| record["id"] == id).unwrap_or_else(|| panic!("{id}: {records:?}"))
}

#[test]
fn a_new_agent_is_a_template_that_can_be_used_and_is_never_written_over() {
    let sandbox = with_directives();
    let written = sandbox.run(&["agent", "new", "scribe", "--json"]).json();
    let file = sandbox.project().join(".ai/agents/scribe.yaml");
    assert_eq!((&written["agent_id"], written["file"].as_str()), (&json!("scribe"), file.to_str()));
    fs::write(&file, "description: Mine.\n").unwrap();
    sandbox.run(&["agent", "new", "scribe", "--json"]).error(5, "file_exists");
    assert_eq!(fs::read_to_string(&file).unwrap(), "description: Mine.\n");
    assert_eq!(sandbox.run(&["agent", "new", "../scribe"]).code, Some(2));
    std::os::unix::fs::symlink("/tmp", sandbox.project().join(".ai/agents/away")).unwrap();
    sandbox.run(&["agent", "new", "away/scribe", "--json"]).error(4, "symbolic_link");
    fs::remove_file(sandbox.project().join(".ai/agents/away")).unwrap();
    sandbox.run(&["agent", "new", "fresh"]);
    let agents = sandbox.run(&["agent", "list", "--json"]).records();
    assert_eq!(of(&agents, "scribe")["agent"]["description"], "Mine.");
    assert!(of(&agents, "fresh")["error"].is_null(), "{agents:?}");
    let ran = sandbox.run(&["run", "base", "--agent", "fresh"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

/// A new file was a template with gaps: it had to be filled in before anything could be tried.
#[test]
fn a_new_directive_and_a_new_tool_work_as_they_are_and_are_never_written_over() {
    let sandbox = Sandbox::new();
    let written = sandbox.run(&["directive", "new", "reports/weekly", "--json"]).json();
    let file = sandbox.project().join(".ai/directives/reports/weekly.md");
    assert_eq!((&written["directive"], written["file"].as_str()), (&json!("reports/weekly"), file.to_str()));
    let checked = sandbox.run(&["directive", "check", "reports/weekly", "--json"]).json();
    assert_eq!((&checked["ok"], &checked["warnings"]), (&json!(true), &json!([])), "{checked}");
    assert_eq!(sandbox.run(&["run", "reports/weekly"]).code, Some(0));
    sandbox.run(&["directive", "new", "reports/weekly", "--json"]).error(5, "file_exists");

    sandbox.run(&["tool", "new", "office/fetch", "--json"]).json();
    let tools = sandbox.run(&["tool", "list", "--json"]).records();
    assert!(of(&tools, "office/fetch")["error"].is_null(), "{tools:?}");
    put(&sandbox, ".ai/directives/ask.md", "---\nname: ask\npermissions: [tool.office.fetch]\n---\nGo.\n");
    put(
        &sandbox,
        "script.yaml",
        "turns:\n  - calls: [{ tool: fetch, arguments: { text: '-n tea' } }]\n  - say: Done.\n",
    );
    let ran = sandbox.run(&["run", "ask", "--model", "scripted:script.yaml"]);
    assert!(ran.code == Some(0) && ran.stdout.contains("✓ -n tea"), "{ran:?}");
    sandbox.run(&["tool", "new", "office/fetch", "--json"]).error(5, "file_exists");
    sandbox.run(&["tool", "new", "a.b", "--json"]).error(2, "usage");
    assert!(!sandbox.project().join(".ai/tools/a.b.yaml").exists());
    std::os::unix::fs::symlink("/tmp", sandbox.project().join(".ai/tools/away")).unwrap();
    sandbox.run(&["tool", "new", "away/fetch", "--json"]).error(4, "symbolic_link");
}

#[test]
fn directives_are_listed_with_their_layer_and_errors() {
    let sandbox = with_directives();
    put(&sandbox, ".ai/directives/bad.md", "no metadata\n");
    let listed = sandbox.run(&["directive", "list", "--json"]).records();
    assert_eq!(of(&listed, "reports/weekly")["version"], "1.2.0");
    assert_eq!(of(&listed, "selvedge/agent/continuation")["layer"], "built_in");
    assert_eq!(of(&listed, "bad")["error"]["code"], "item_invalid");
    let shown = sandbox.run(&["directive", "list"]);
    assert!(shown.code == Some(0) && shown.stdout.contains("reports/weekly"), "{shown:?}");
}

#[test]
fn a_valid_directive_is_shown_with_everything_it_uses() {
    let sandbox = with_directives();
    sandbox.run(&["sign", ".ai/directives/base.md"]);
    let checked = sandbox.run(&["directive", "check", "reports/weekly", "--json"]).json();
    let verdicts: Vec<&Value> =
        checked["sources"].as_array().unwrap().iter().map(|source| &source["verdict"]).collect();
    assert_eq!((&checked["ok"], verdicts), (&json!(true), vec![&json!("unsigned"), &json!("trusted")]));
    assert_eq!(checked["directive"]["inputs"][0]["name"], "city");
    assert!(checked["directive"]["body"].is_null());
    let shown = sandbox.run(&["directive", "check", "reports/weekly"]).stdout;
    for part in
        ["reports/weekly 1.2.0", "not signed", "signed by key", "base.md", "city (string, required)", "tool.file.read"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let by_file = sandbox.run(&["directive", "check", ".ai/directives/reports/weekly.md", "--json"]).json();
    assert_eq!(by_file, checked);
}

#[test]
fn a_bad_directive_is_shown_with_file_line_and_reason() {
    let sandbox = with_directives();
    put(&sandbox, ".ai/directives/bad.md", "---\nname: bad\nversion: 1.0.0\ninptus: []\n---\nHello.\n");
    let error = sandbox.run(&["directive", "check", "bad", "--json"]).error(2, "item_invalid");
    assert_eq!((&error["line"], error["hint"].is_null()), (&json!(4), false), "{error}");
    let all = sandbox.run(&["directive", "check", "--json"]);
    all.error_beside_data(2, "item_invalid");
    let records = all.records();
    assert_eq!((&of(&records, "bad")["ok"], &of(&records, "bad")["error"]["line"]), (&json!(false), &json!(4)));
    assert_eq!(of(&records, "base")["ok"], true);
    put(&sandbox, "elsewhere.md", &BASE.replace("1.0.0", "one"));
    let error = sandbox.run(&["directive", "check", "elsewhere.md", "--json"]).error(2, "item_invalid");
    assert!(error["file"].as_str().unwrap().ends_with("elsewhere.md"), "{error}");
    sandbox.run(&["directive", "check", "nothing", "--json"]).error(3, "item_not_found");
}

/// The check was content, and the run was not.
#[test]
fn a_directive_whose_knowledge_is_missing_or_whose_variables_are_hidden_is_found_by_the_check() {
    let sandbox = Sandbox::new();
    put(&sandbox, ".ai/directives/base.md", &BASE.replace("permissions", "context: { system: [tone] }\npermissions"));
    for check in [&["directive", "check", "base", "--json"][..], &["directive", "check", "--json"]] {
        let ran = sandbox.run(check);
        let error = ran.error_beside_data(2, "item_invalid");
        let error = ran
            .records()
            .into_iter()
            .find_map(|record| record["error"].as_object().cloned().map(Value::from))
            .unwrap_or(error);
        assert_eq!(
            (&error["line"], error["message"].as_str().unwrap().contains("`tone`")),
            (&json!(4), true),
            "{error}"
        );
    }
    put(&sandbox, ".ai/knowledge/tone.md", "Be kind.\n");
    let shown = sandbox.run(&["directive", "check", "base"]);
    assert!(shown.code == Some(0) && shown.stdout.contains("tone (system)"), "{shown:?}");
    put(&sandbox, ".ai/directives/base.md", &BASE.replace("Be brief.", "You live in {env:HOME}."));
    let checked = sandbox.run(&["directive", "check", "base", "--json"]).json();
    assert!(checked["warnings"].to_string().contains("{env:HOME}"), "{checked}");
    let error = sandbox.run(&["run", "base", "--json"]).error(4, "interpolation_not_allowed");
    assert_eq!((&error["line"], error["file"].as_str().unwrap().ends_with("base.md")), (&json!(6), true), "{error}");
}

#[test]
fn a_directive_that_was_changed_after_signing_may_not_run() {
    let sandbox = with_directives();
    sandbox.run(&["sign", ".ai/directives/base.md"]);
    let file = sandbox.project().join(".ai/directives/base.md");
    fs::write(&file, fs::read_to_string(&file).unwrap().replace("brief", "rude")).unwrap();
    for checked in ["base", "reports/weekly"] {
        sandbox.run(&["directive", "check", checked, "--json"]).error(4, "item_not_trusted");
    }
}

#[test]
fn tools_are_listed_with_effect_and_capability() {
    let sandbox = Sandbox::new();
    put(&sandbox, ".ai/tools/pay.yaml", "name: pay\ndescription: Pays.\ncommand: [./pay.sh]\n");
    put(&sandbox, ".ai/tools/bad.yaml", "name: bad\ndescription: Bad.\ncommand: []\n");
    let ran: Ran = sandbox.run(&["tool", "list", "--json"]);
    let tools = ran.records();
    assert_eq!(of(&tools, "file_read")["layer"], "built_in");
    let spawn = &of(&tools, "spawn_thread")["tool"];
    assert_eq!((&spawn["capability"], &spawn["risk"]), (&json!("tool.threads.spawn"), &json!("write")));
    assert_eq!(of(&tools, "wait_threads")["layer"], "built_in");
    let pay = &of(&tools, "pay")["tool"];
    assert_eq!((&pay["class"], &pay["capability"]), (&json!("at_most_once"), &json!("selvedge.execute.tool.pay")));
    assert_eq!(of(&tools, "bad")["error"]["code"], "item_invalid");
}

/// A link was absent from both, and a long directive was called one.
#[test]
fn a_linked_and_a_long_directive_are_listed_each_with_its_own_reason() {
    let sandbox = with_directives();
    let at = |name: &str| sandbox.project().join(".ai/directives").join(name);
    std::os::unix::fs::symlink(at("base.md"), at("linked.md")).unwrap();
    std::os::unix::fs::symlink("/tmp", at("away")).unwrap();
    fs::write(at("long.md"), vec![b'x'; (1 << 20) + 1]).unwrap();
    let listed = sandbox.run(&["directive", "list", "--json"]).records();
    for (id, code) in [("linked", "item_unsafe"), ("away/", "item_unsafe"), ("long", "item_too_large")] {
        assert_eq!(of(&listed, id)["error"]["code"], code, "{listed:?}");
    }
    let said = of(&listed, "long")["error"].to_string();
    assert!(!said.contains("link") && said.contains("1048576"), "{said}");
    let checked = sandbox.run(&["directive", "check"]);
    assert_eq!(checked.code, Some(4), "{checked:?}");
    for named in ["✗ linked", "✗ away/", "✗ long", "it is a link"] {
        assert!(checked.stdout.contains(named), "{named}: {checked:?}");
    }
}

/// The metadata was not seen behind the mark.
#[test]
fn a_directive_that_begins_with_a_byte_order_mark_is_run_and_signed() {
    let sandbox = with_directives();
    put(&sandbox, ".ai/directives/base.md", &format!("\u{feff}{BASE}"));
    let checked = sandbox.run(&["directive", "check", "base", "--json"]).json();
    assert_eq!(checked["directive"]["version"], "1.0.0");
    assert_eq!(sandbox.run(&["sign", ".ai/directives/base.md"]).code, Some(0));
    let checked = sandbox.run(&["directive", "check", "base", "--json"]).json();
    assert_eq!(checked["sources"][0]["verdict"], "trusted");
}

#[test]
fn a_limit_of_zero_or_beyond_64_bits_is_refused() {
    let sandbox = with_directives();
    for (limit, why) in [
        ("turns=0", "the minimum is 1"),
        ("tokens=0", "the minimum is 1"),
        ("duration=0", "the minimum is 1"),
        ("turns=99999999999999999999", "is too large: at most 18446744073709551615"),
        ("turns=-1", "is not a whole number"),
    ] {
        let ran = sandbox.run(&["run", "base", "--limit", limit]);
        assert!(ran.code == Some(2) && ran.stderr.contains(why), "{limit}: {ran:?}");
    }
}
