//! A configuration file of a project, on top of that of a strict user.
//!
//! Either it is refused, or every listed key can be read and explained, reading it again gives the same, and nothing in it is less strict
//! than the user's.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};

use selvedge_items::config::{Action, Config, Folders, Unsigned, schemas};
use selvedge_model::event::EffectClass;
use selvedge_model::tool::Risk;
use selvedge_model::{Digest, ToolSpec};
use serde_json::Value;
use tempfile::TempDir;

thread_local! {
    static FOLDER: RefCell<Option<(TempDir, Vec<String>)>> = const { RefCell::new(None) };
}

/// Reads a project with one file; its first line may name it, `# agent/limits.yaml`.
pub fn run(bytes: &[u8]) {
    let (root, paths) = folder();
    let named = bytes.strip_prefix(b"# ").and_then(|rest| rest.split(|byte| *byte == b'\n').next());
    let path = paths.iter().find(|path| named == Some(path.as_bytes()));
    let path = path.unwrap_or(&paths[bytes.len() % paths.len()]);
    let file = root.join("project/config").join(path);
    fs::write(&file, bytes).expect("the folder can be written");
    let folders = Folders { user: Some(root.join("user")), project: Some(root.join("project")) };
    let loaded = Config::load(&folders);
    if let Ok(config) = &loaded {
        check(config);
        let again = Config::load(&folders).expect("a valid file is valid again");
        assert_eq!(again.digest(), config.digest());
    }
    fs::remove_file(&file).expect("it was written");
}

fn check(config: &Config) {
    for setting in config.list() {
        let explained = config.explain(&setting.key).unwrap_or_else(|error| panic!("`{}`: {error}", setting.key));
        assert!(!explained.meaning.is_empty() && !explained.values.is_empty(), "{}", setting.key);
        assert_eq!(explained.value.as_ref(), Some(&setting.value), "{}", setting.key);
        assert_eq!(config.get(&setting.key).ok(), Some(setting.value), "{}", setting.key);
    }
    assert_eq!(config.run.unsigned, Unsigned::Refuse, "a project allows what its user refuses");
    assert!(config.run.environment.is_empty(), "a project opens the user's environment");
    assert_eq!(config.get("coordination.transcript_integrity").ok(), Some("strict".into()));
    assert!(config.redaction.patterns.iter().any(|pattern| pattern.prefix == "sk-"), "a project shows secrets");
    for name in ["pay", "read", "x"] {
        assert!(
            config.approvals.decide(&tool(name)).action >= Action::Ask,
            "a project allows what its user asks about"
        );
    }
}

fn tool(name: &str) -> ToolSpec {
    ToolSpec {
        name: name.to_owned(),
        description: String::new(),
        input_schema: Value::Null,
        class: EffectClass::Pure,
        capability: format!("tool.{name}"),
        risk: Risk::Safe,
        hash: Digest([0; 32]),
    }
}

/// A private folder that lives as long as this OS thread, and the paths of the configuration files.
fn folder() -> (PathBuf, Vec<String>) {
    FOLDER.with(|folder| {
        let mut folder = folder.borrow_mut();
        let (made, paths) = folder.get_or_insert_with(|| {
            let made = tempfile::tempdir().expect("there is a temporary folder");
            let path = |schema: Value| schema["title"].as_str().map(|title| title.replacen("config/", "", 1));
            write(made.path(), "user/config/agent/run.yaml", "unsigned: refuse\n");
            write(made.path(), "user/config/agent/approvals.yaml", "default: ask\n");
            write(made.path(), "project/config/agent/shared/base.yaml", "{}\n");
            (made, schemas().into_iter().filter_map(|(_, schema)| path(schema)).collect())
        });
        (made.path().to_owned(), paths.clone())
    })
}

fn write(root: &Path, name: &str, text: &str) {
    let file = root.join(name);
    fs::create_dir_all(file.parent().unwrap_or(root)).expect("a folder can be made");
    fs::write(file, text).expect("a file can be written");
}

/// One file of each kind.
pub fn seeds() -> Vec<Vec<u8>> {
    let seeds = [
        "# agent/run.yaml\nunsigned: refuse\nenvironment: [LANG, HOME]\n",
        "# agent/limits.yaml\nextends: ./shared/base.yaml\nturns: 5\nspend: \"0.50\"\ntokens: null\n",
        "# agent/stops.yaml\nstops:\n  repeated_calls: 3\n  stop_on_tools: [pay]\n  content_match: ['DONE.']\n",
        "# agent/approvals.yaml\ndefault: deny\nwait: each\nrules:\n  - {id: a, tool: pay, action: allow}\n  - {id: b, capability: '*', action: allow, reason: why}\n  - {id: c, risk: write, action: ask, expires_after_seconds: 60, resume_mode: pass_decision_to_tool}\n",
        "# agent/errors.yaml\nattempts_max: 9\nclasses:\n  - {id: rate_limited, class: permanent, codes: [429]}\n  - {id: mine, class: transient, texts: [flaky]}\n",
        "# agent/models.yaml\ntiers: {fast: small-1.5}\nknown:\n  - {id: small-1.5, input: '0.80', output: 4, cache_read: 0.08, context_tokens: 1000}\n",
        "# agent/redaction.yaml\npatterns:\n  - {id: provider, prefix: nothing-, length_min: 1000}\n  - {id: own, prefix: own_}\n",
        "# agent/scopes.yaml\ndeclared:\n  - {id: a, path: [scratch, deep], scope: run}\n",
        "# agent/coordination.yaml\ncoordination:\n  continuation: {trigger_threshold: 0.5}\n  transcript_integrity: lenient\n",
        "# state_persistence.yaml\nextends: rye/agent/threads/config/state_schema.yaml\ncheckpoint:\n  triggers: {pre_turn: {enabled: false}}\nretention:\n  max_checkpoints: 20\n",
    ];
    seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect()
}
