//! Names and paths that lead elsewhere are refused before a path is built, wherever they come from.

use std::fs;
use std::os::unix::fs::symlink;

use selvedge::model::{AgentId, Classify, DirectiveId, Status, ThreadId};
use selvedge::project::RunOptions;
use serde_json::json;

use crate::support::{House, results};

#[test]
fn names_that_lead_elsewhere_are_invalid() {
    for name in [
        "",
        ".",
        "..",
        "../x",
        "a/../b",
        "/etc/passwd",
        "a//b",
        "a/",
        "a\0b",
        ".hidden",
        "a/.hidden",
        "a\nb",
        "a\\b",
        "ä",
    ] {
        assert!(DirectiveId::new(name).is_err(), "{name:?}");
        assert!(ThreadId::new(name).is_err(), "{name:?}");
        assert!(AgentId::new(name).is_err(), "{name:?}");
    }
}

#[test]
fn items_behind_symbolic_links_are_refused() {
    let house = House::new();
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("evil.md"), "---\nname: evil\n---\n\nObey.\n").unwrap();
    house.directive("good", &[], "Be good.");
    house.script(&json!([{"say": "Done."}]));
    symlink(elsewhere.path().join("evil.md"), house.root.join(".ai/directives/evil.md")).unwrap();
    symlink(elsewhere.path(), house.root.join(".ai/directives/away")).unwrap();
    for id in ["evil", "away/evil"] {
        let error = house.prepare(id).unwrap_err();
        assert!(error.to_string().contains("link"), "{id}: {error}");
    }
    assert_eq!(house.run("good").ended.status, Status::Completed);
    fs::create_dir_all(house.root.join(".ai/agents")).unwrap();
    fs::write(elsewhere.path().join("spy.yaml"), "identity: A spy.\n").unwrap();
    symlink(elsewhere.path().join("spy.yaml"), house.root.join(".ai/agents/spy.yaml")).unwrap();
    let options = RunOptions { agent: Some(AgentId::new("spy").unwrap()), ..RunOptions::default() };
    let error = house.project().prepare(&DirectiveId::new("good").unwrap(), options).unwrap_err();
    assert!(error.to_string().contains("link"), "{} {error}", error.code());
}

#[test]
fn paths_of_a_model_stay_inside_the_project() {
    let house = House::new();
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("secret"), "the secret").unwrap();
    symlink(elsewhere.path(), house.root.join("away")).unwrap();
    symlink(elsewhere.path().join("secret"), house.root.join("link")).unwrap();
    house.directive("look", &["file.*"], "Look around.");
    let inside = elsewhere.path().join("secret").display().to_string();
    let outside = format!("../{}/secret", elsewhere.path().file_name().unwrap().to_str().unwrap());
    let paths = [inside.as_str(), &outside, "away/secret", "link", "a\0b", "..", "", ".ai/agent/threads/registry.db"];
    let read = paths.map(|path| json!({"tool": "file_read", "arguments": {"path": path}}));
    let list = paths[..6].iter().map(|path| json!({"tool": "file_list", "arguments": {"path": path}}));
    let write = paths.map(|path| json!({"tool": "file_write", "arguments": {"path": path, "content": "overwritten"}}));
    let calls: Vec<_> = read.into_iter().chain(list).chain(write).collect();
    house.script(&json!([{ "calls": calls }, {"say": "Done."}]));
    let ran = house.run("look");
    assert_eq!(ran.ended.status, Status::Completed);
    let results = results(&ran.thread);
    assert_eq!(results.len(), 22);
    for (call, (text, failed)) in calls.iter().zip(&results) {
        assert!(*failed && !text.contains("the secret"), "{call}: {text}");
    }
    assert_eq!(fs::read_to_string(elsewhere.path().join("secret")).unwrap(), "the secret");
    house.assert_settled();
}
