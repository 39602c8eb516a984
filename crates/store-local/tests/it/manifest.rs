//! `thread.json`: written when something changes that it must show at once, and not for every turn of a run.

use std::fs;

use selvedge_model::{AgentId, Batch, Changeset, Event, Expect, Part, Reason, RunId, RunMeta};
use selvedge_store::{Commit, Registry};
use serde_json::Value;

use crate::support::{Home, thread_with};

/// Every turn of a run adds to the usage of its thread; a signature and a rename for each turn would be too expensive.
#[test]
fn the_turns_of_a_run_change_the_registry_and_not_the_file() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    let file = home.threads().join(thread.folder()).join("thread.json");
    let meta = RunMeta::started(AgentId::new("scribe").unwrap(), "user");
    let commit = |run_meta, events, reason| {
        let run_id = Some(RunId::new("r1").unwrap());
        let changeset = Changeset { run_id, run_meta, events, ..Changeset::empty(reason) };
        store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, changeset))).unwrap();
    };
    commit(Some(meta.clone()), Vec::new(), Reason::UserMessage);
    let begun = fs::read(&file).unwrap();
    let usage = r#"{"model":"m","turns":1,"input_tokens":10,"output_tokens":5,"spend":0.5,"duration_ms":0}"#;
    for turns in 1..=5 {
        commit(None, vec![Event::Usage(serde_json::from_str(usage).unwrap())], Reason::AssistantTurnCommitted);
        assert_eq!(store.get(&thread).unwrap().manifest.cost.turns, turns);
        assert_eq!(fs::read(&file).unwrap(), begun, "it was written for turn {turns}");
    }
    let cost = selvedge_model::limits::Cost { turns: 5, ..Default::default() };
    commit(Some(RunMeta { cost: Some(cost), ..meta.finished("natural") }), Vec::new(), Reason::RunFinished);
    let shown: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert!(shown.to_string().contains("\"turns\":5"), "{shown}");
    let registry = rusqlite::Connection::open(home.threads().join("registry.db")).unwrap();
    let at: String = registry.query_row("SELECT updated_at FROM threads", [], |row| row.get(0)).unwrap();
    assert_eq!(Value::from(at), serde_json::json!(store.get(&thread).unwrap().manifest.updated_at));
    store.close().unwrap();
}
