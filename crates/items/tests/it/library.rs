//! Where items are found, and which are refused.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use selvedge_items::interpolate::render;
use selvedge_items::library::Kind;
use selvedge_items::{Environment, ItemError, Layer, Library, Policy, Scope, SignatureVerdict, input};
use selvedge_log::Trust;
use selvedge_model::error::Classify;
use selvedge_model::{AgentId, DirectiveId};
use serde_json::json;
use tempfile::TempDir;

fn folders() -> (TempDir, Library) {
    let root = tempfile::tempdir().unwrap();
    let library = Library {
        project: Some(root.path().join("project/.ai")),
        user: Some(root.path().join("user/.ai")),
        trust: Trust::of(&[]),
        policy: Policy::default(),
    };
    (root, library)
}

fn put(root: &TempDir, path: &str, text: &str) {
    let path = root.path().join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn named(name: &str, rest: &str) -> String {
    format!("---\nname: {name}\n{rest}---\nBody of {name}.\n")
}

fn id(text: &str) -> DirectiveId {
    DirectiveId::new(text).unwrap()
}

#[test]
fn the_project_comes_before_the_user_and_both_before_what_is_built_in() {
    let (root, library) = folders();
    let built_in = library.directive(&id("selvedge/agent/continuation")).unwrap();
    assert_eq!((built_in.sources[0].layer, &built_in.sources[0].verdict), (Layer::BuiltIn, &SignatureVerdict::BuiltIn));
    put(&root, "user/.ai/directives/selvedge/agent/continuation.md", &named("continuation", ""));
    assert_eq!(library.directive(&id("selvedge/agent/continuation")).unwrap().sources[0].layer, Layer::User);
    put(&root, "project/.ai/directives/selvedge/agent/continuation.md", "not a directive");
    let error = library.directive(&id("selvedge/agent/continuation")).unwrap_err();
    assert_eq!(error.code(), "item_invalid", "a broken item of the project is not replaced by another: {error}");
    let listed = library.list(Kind::Directive).unwrap();
    let named = listed.iter().filter(|entry| entry.id.ends_with("/continuation"));
    let layers: Vec<_> = named.map(|entry| (entry.layer, entry.hidden)).collect();
    assert_eq!(layers, [(Layer::Project, false), (Layer::User, true), (Layer::BuiltIn, true)]);
}

#[test]
fn a_missing_older_name_is_looked_up_among_the_newer_ones() {
    let (root, library) = folders();
    assert_eq!(library.directive(&id("rye/agent/continuation")).unwrap().id(), "selvedge/agent/continuation");
    put(&root, "project/.ai/directives/rye/agent/continuation.md", &named("continuation", ""));
    assert_eq!(library.directive(&id("rye/agent/continuation")).unwrap().id(), "rye/agent/continuation");
}

#[test]
fn the_continuation_directive_accepts_the_documented_inputs() {
    let (_root, library) = folders();
    let directive = library.directive(&id("selvedge/agent/continuation")).unwrap().item;
    let given = json!({
        "original_directive": "reports/weekly", "original_directive_body": "Body with {input:x}.", "previous_thread_id": "t-1",
    });
    let inputs = input::bind(&directive.inputs, given.as_object().unwrap().clone()).unwrap();
    let values = json!({ "inputs": inputs });
    let text = render(&directive.body, &Scope { values: &values, environment: Environment::default() }).unwrap().text;
    for part in ["`reports/weekly`", "`t-1`", "Continue from where", "Body with {input:x}."] {
        assert!(text.contains(part), "{text}");
    }
    assert!(directive.warnings().is_empty());
}

#[test]
fn a_missing_item_is_reported_with_a_suggestion() {
    let (root, library) = folders();
    put(&root, "project/.ai/directives/reports/weekly.md", &named("weekly", ""));
    let error = library.directive(&id("reports/weekyl")).unwrap_err();
    assert_eq!((error.code(), error.hint().unwrap().as_str()), ("item_not_found", "did you mean `reports/weekly`?"));
    put(&root, "project/.ai/directives/file", "");
    assert_eq!(library.directive(&id("file/below")).unwrap_err().code(), "item_not_found");
}

#[test]
fn a_file_with_another_name_or_category_is_refused() {
    let (root, library) = folders();
    put(&root, "project/.ai/directives/a.md", &named("b", ""));
    put(&root, "project/.ai/directives/x/c.md", &named("c", "category: y\n"));
    for name in ["a", "x/c"] {
        let error = library.directive(&id(name)).unwrap_err();
        assert!(matches!(&error, ItemError::Invalid { file, .. } if file.ends_with(&format!("{name}.md"))), "{error}");
    }
}

#[test]
fn an_error_has_file_line_reason_and_hint() {
    let (root, library) = folders();
    put(&root, "project/.ai/directives/a.md", "---\nname: a\nlimit: {}\n---\n");
    let error = library.directive(&id("a")).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("directives/a.md`") && text.contains("line 3, column 1: `limit` is not a known key"),
        "{text}"
    );
    assert_eq!(error.hint().unwrap(), "did you mean `limits`?");
}

#[test]
fn directives_that_extend_each_other_in_a_cycle_are_refused() {
    let (root, library) = folders();
    for (name, next) in [("a", "b"), ("b", "c"), ("c", "b"), ("s", "s")] {
        put(&root, &format!("project/.ai/directives/{name}.md"), &named(name, &format!("extends: {next}\n")));
    }
    for (name, chain) in [("a", "a → b → c → b"), ("s", "s → s")] {
        let error = library.directive(&id(name)).unwrap_err();
        assert!(error.code() == "item_cycle" && error.to_string().contains(chain), "{error}");
    }
    for level in 0..40 {
        let next = format!("extends: d{}\n", level + 1);
        put(&root, &format!("project/.ai/directives/d{level}.md"), &named(&format!("d{level}"), &next));
    }
    assert_eq!(library.directive(&id("d0")).unwrap_err().code(), "item_invalid");
    put(&root, "project/.ai/directives/orphan.md", &named("orphan", "extends: gone\n"));
    assert_eq!(library.directive(&id("orphan")).unwrap_err().code(), "item_not_found");
}

#[test]
fn names_that_would_escape_are_refused_before_a_path_is_built() {
    for bad in
        ["../a", "a/../b", "/etc/passwd", "a//b", ".hidden", "a/.git", "a\0b", "", "a\\b", "A", "a b", &"a".repeat(201)]
    {
        assert!(DirectiveId::new(bad).is_err() && AgentId::new(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn links_are_refused_everywhere() {
    let (root, library) = folders();
    put(&root, "elsewhere/secret.md", &named("secret", ""));
    put(&root, "project/.ai/directives/real.md", &named("real", ""));
    let at = |path: &str| root.path().join("project/.ai/directives").join(path);
    symlink(root.path().join("elsewhere/secret.md"), at("secret.md")).unwrap();
    symlink(root.path().join("elsewhere"), at("folder")).unwrap();
    symlink(at("real.md"), at("inside.md")).unwrap();
    symlink(Path::new("/nonexistent"), at("dangling.md")).unwrap();
    for name in ["secret", "folder/secret", "inside", "dangling"] {
        let error = library.directive(&id(name)).unwrap_err();
        assert_eq!(error.code(), "item_unsafe", "{name}: {error}");
    }
    let listed = library.list(Kind::Directive).unwrap();
    let ids: Vec<_> = listed.iter().map(|entry| (entry.id.as_str(), entry.readable().is_ok())).collect();
    let expected = [
        ("dangling", false),
        ("folder/", false),
        ("inside", false),
        ("real", true),
        ("secret", false),
        ("selvedge/agent/continuation", true),
        ("selvedge/agent/threads/thread_summary", true),
    ];
    assert_eq!(ids, expected, "links are listed");
    assert!(listed[1].readable().unwrap_err().to_string().contains("directives/folder` is not read: it is a link"));
    symlink(root.path().join("elsewhere"), root.path().join("project/.ai/agents")).unwrap();
    assert_eq!(library.agent(&AgentId::new("secret").unwrap()).unwrap_err().code(), "item_unsafe");
    assert_eq!(library.list(Kind::Agent).unwrap_err().code(), "item_unsafe", "a linked folder is not silently empty");
}

#[test]
fn special_and_too_large_files_are_refused_without_blocking() {
    let (root, library) = folders();
    put(&root, "project/.ai/directives/real.md", &named("real", ""));
    let at = |path: &str| root.path().join("project/.ai/directives").join(path);
    fs::create_dir(at("folder.md")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, at("pipe.md"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    fs::write(at("huge.md"), vec![b'x'; (1 << 20) + 1]).unwrap();
    fs::write(at("bytes.md"), b"---\nname: bytes\n---\n\xff\xfe").unwrap();
    for (name, code) in
        [("folder", "item_unsafe"), ("pipe", "item_unsafe"), ("huge", "item_too_large"), ("bytes", "item_invalid")]
    {
        let error = library.directive(&id(name)).unwrap_err();
        assert_eq!(error.code(), code, "{name}");
        let said = format!("{error} {}", error.hint().unwrap_or_default());
        assert!(!said.contains("link"), "none of them is a link: {said}");
    }
    let huge = library.directive(&id("huge")).unwrap_err();
    assert!(huge.to_string().contains("at most 1048576 bytes"), "{huge}");
}

#[test]
fn a_byte_order_mark_is_not_part_of_an_item_or_the_configuration() {
    let (root, library) = folders();
    put(&root, "project/.ai/directives/hello.md", &format!("\u{feff}{}", named("hello", "")));
    put(&root, "project/.ai/agents/scribe.yaml", "\u{feff}name: Scribe\n");
    put(&root, "project/.ai/knowledge/facts.md", "\u{feff}---\ntitle: Facts\n---\nWater is wet.\n");
    assert_eq!(library.directive(&id("hello")).unwrap().item.name, "hello");
    assert_eq!(library.agent(&AgentId::new("scribe").unwrap()).unwrap().item.name.as_deref(), Some("Scribe"));
    assert_eq!(library.knowledge(&id("facts")).unwrap().item.body, "Water is wet.");
}

#[test]
fn agents_and_tools_are_found_in_their_own_folders() {
    let (root, library) = folders();
    put(&root, "user/.ai/agents/scribe.yaml", "name: Scribe\n");
    put(&root, "project/.ai/tools/files/list.yaml", "name: list\ndescription: Lists.\ncommand: [ls]\n");
    assert_eq!(library.agent(&AgentId::new("scribe").unwrap()).unwrap().item.name.as_deref(), Some("Scribe"));
    assert_eq!(library.tool(&id("files/list")).unwrap().item.capability, "selvedge.execute.tool.files.list");
    assert_eq!(library.list(Kind::Tool).unwrap().len(), 1);
    assert_eq!(library.tool(&id("scribe")).unwrap_err().code(), "item_not_found");
}

#[test]
fn a_library_without_folders_has_the_built_in_items() {
    let library = Library { project: None, user: None, trust: Trust::of(&[]), policy: Policy::RequireTrusted };
    assert_eq!(library.list(Kind::Directive).unwrap().len(), 2);
    assert!(library.directive(&id("selvedge/agent/continuation")).is_ok());
    assert!(library.directive(&id("rye/agent/threads/thread_summary")).is_ok());
}
