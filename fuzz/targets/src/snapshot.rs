//! The text of a snapshot: complete, packed, or only the changes.
//!
//! Whatever it is, no more is unpacked than it declares, packing loses nothing, and changes either apply to their base or are refused.

use selvedge_engine::snapshot::form::{self, Base, UNPACKED_MAX};
use selvedge_model::Digest;
use serde_json::{Value, json};

fn whole(version: u64) -> Value {
    let messages: Vec<Value> = (0..version).map(|at| json!({"role": "user", "content": at})).collect();
    json!({
        "version": "1.1.0", "saved_at": "2026-01-01T00:00:00.000000Z", "trigger": "on_suspend", "thread_id": "t-000000000001",
        "log_version": version, "log_hash": "0".repeat(64), "messages": messages, "cost": {"turns": version},
    })
}

/// Reads it as a snapshot that is based on another one.
pub fn run(bytes: &[u8]) {
    let Ok(document) = serde_json::from_slice::<Value>(bytes) else { return };
    let says = document.get("packed").and_then(|packed| packed.get("bytes")).and_then(Value::as_u64);
    if let Ok(inside) = form::unpacked(document.clone()) {
        let length = inside.to_string().len();
        assert!(says.is_none() || length <= UNPACKED_MAX, "{length} bytes came out");
        assert!(form::unpacked(form::pack(&inside)).is_ok_and(|again| again == inside), "packing loses content");
        _ = form::base_of(&inside);
        if let Ok(after) = form::changed(whole(3), &inside) {
            assert_eq!(
                after.get("log_version"),
                inside.get("log_version"),
                "the changes have another version than declared"
            );
        }
    }
    // The changes between any two snapshots give the second one.
    let before = whole(2);
    let base = Base { log_version: 2, hash: Digest([0; 32]), depth: 1 };
    let change = form::change(&before, &document, &base);
    if let Ok(after) = form::changed(before, &change) {
        let mut expected = document;
        if let Some(members) = expected.as_object_mut() {
            members.remove("seal");
        }
        assert_eq!(after, expected, "the changes give another snapshot");
    }
}

/// A whole one, a packed one, and changes.
pub fn seeds() -> Vec<Vec<u8>> {
    let base = Base { log_version: 3, hash: Digest([0; 32]), depth: 1 };
    let change = form::change(&whole(3), &whole(5), &base);
    let seeds = [whole(4), form::pack(&whole(6)), form::pack(&change), change];
    seeds.iter().map(|seed| seed.to_string().into_bytes()).collect()
}
