//! `cargo xtask layers`: who may import whom.
//!
//! A crate exists to forbid an import, and this is where the forbidding is done. What a crate needs only for its tests is
//! its own affair, except the local store: whoever tests against it instead of the contract is in the wrong place.

use std::fmt;

use serde_json::Value;

use crate::step::{Failure, cargo};

/// What one crate may import of ours.
struct Row {
    name: &'static str,
    may: &'static [&'static str],
}

const MODEL: &str = "selvedge-model";
const LOG: &str = "selvedge-log";
const ITEMS: &str = "selvedge-items";
const STORE: &str = "selvedge-store";
const LEGACY: &str = "selvedge-legacy";
const STORE_LOCAL: &str = "selvedge-store-local";
const STORE_POSTGRES: &str = "selvedge-store-postgres";
const PROVIDERS: &str = "selvedge-providers";
const TOOLS: &str = "selvedge-tools";
const ENGINE: &str = "selvedge-engine";
const SERVER: &str = "selvedge-server";
const FACADE: &str = "selvedge";
const OUTSIDE: &str = "selvedge-outside";
const CLI: &str = "selvedge-cli";
const TESTKIT: &str = "selvedge-testkit";
const BENCH: &str = "selvedge-bench";
const FUZZ: &str = "selvedge-fuzz";

/// Every crate of the workspace, from the one that knows nobody to those that wire all.
const TABLE: [Row; 18] = [
    Row { name: MODEL, may: &[] },
    Row { name: LOG, may: &[MODEL] },
    Row { name: STORE, may: &[MODEL, LOG] },
    Row { name: LEGACY, may: &[MODEL, LOG, STORE] },
    Row { name: ITEMS, may: &[MODEL, LOG, LEGACY] },
    Row { name: STORE_LOCAL, may: &[MODEL, LOG, STORE] },
    Row { name: STORE_POSTGRES, may: &[MODEL, LOG, STORE] },
    Row { name: PROVIDERS, may: &[MODEL] },
    Row { name: TOOLS, may: &[MODEL] },
    Row { name: ENGINE, may: &[MODEL, LOG, ITEMS, STORE] },
    Row { name: SERVER, may: &[MODEL, LOG, ITEMS, STORE, ENGINE] },
    Row {
        name: FACADE,
        may: &[MODEL, LOG, LEGACY, ITEMS, STORE, STORE_LOCAL, STORE_POSTGRES, PROVIDERS, TOOLS, ENGINE, SERVER],
    },
    Row {
        name: CLI,
        may: &[MODEL, LOG, LEGACY, ITEMS, STORE, STORE_LOCAL, STORE_POSTGRES, PROVIDERS, TOOLS, ENGINE, SERVER, FACADE],
    },
    // A program of a stranger: the façade is all it knows.
    Row { name: OUTSIDE, may: &[FACADE] },
    Row { name: TESTKIT, may: &[MODEL, LOG, LEGACY, ITEMS, STORE, STORE_LOCAL, ENGINE] },
    Row {
        name: BENCH,
        may: &[MODEL, LOG, ITEMS, STORE, STORE_LOCAL, STORE_POSTGRES, PROVIDERS, TOOLS, ENGINE, SERVER, FACADE],
    },
    Row { name: FUZZ, may: &[MODEL, LOG, LEGACY, ITEMS, STORE, STORE_LOCAL, PROVIDERS, ENGINE] },
    // Compiled before anything else, so it imports nothing of ours.
    Row { name: "xtask", may: &[] },
];

/// Who may import the local store, tests included.
const KNOW_STORE_LOCAL: [&str; 7] = [STORE_LOCAL, FACADE, CLI, TESTKIT, BENCH, FUZZ, "xtask"];

/// Crates of others that only these of ours may import.
const ONLY: [(&str, &[&str]); 1] = [("rusqlite", &[STORE_LOCAL])];

/// Crates of others that one of ours may not import.
const NEVER: [(&str, &[&str]); 1] = [(ENGINE, &["axum", "reqwest", "rusqlite", "tokio-postgres"])];

/// What is wrong with one crate.
#[derive(Debug, PartialEq, Eq)]
enum Breach {
    /// It stands in no row of the table.
    Unknown { name: String },
    /// It imports what it may not.
    Forbidden { from: String, to: String, why: &'static str },
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name } => {
                write!(f, "`{name}` stands in no row: say in `xtask/src/layers.rs` what it may import")
            }
            Self::Forbidden { from, to, why } => write!(f, "`{from}` may not import `{to}`: {why}"),
        }
    }
}

pub(crate) fn run(_: &[String]) -> Result<(), Failure> {
    let metadata = metadata()?;
    let breaches = breaches(&metadata);
    if breaches.is_empty() {
        println!("layers: {} crates, each imports only what it may", packages(&metadata).len());
        return Ok(());
    }
    let lines: Vec<_> = breaches.iter().map(|breach| format!("  {breach}")).collect();
    Err(Failure(format!("the layers are broken\n{}", lines.join("\n"))))
}

fn metadata() -> Result<Value, Failure> {
    let output = cargo(&["metadata", "--no-deps", "--format-version", "1"]).output();
    let output = output.map_err(|error| Failure(format!("`cargo metadata` can't be started: {error}")))?;
    if !output.status.success() {
        return Err(Failure(format!("`cargo metadata` failed: {}", String::from_utf8_lossy(&output.stderr))));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| Failure(format!("`cargo metadata` said no JSON: {error}")))
}

fn packages(metadata: &Value) -> &[Value] {
    metadata["packages"].as_array().map_or(&[], Vec::as_slice)
}

fn breaches(metadata: &Value) -> Vec<Breach> {
    let packages = packages(metadata);
    let ours: Vec<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let mut found = Vec::new();
    for package in packages {
        let from = package["name"].as_str().unwrap_or_default();
        let Some(row) = TABLE.iter().find(|row| row.name == from) else {
            found.push(Breach::Unknown { name: from.to_owned() });
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let to = dependency["name"].as_str().unwrap_or_default();
            let is_dev = dependency["kind"] == "dev";
            let is_ours = ours.contains(&to);
            if let Some(why) = judge(row, to, is_ours, is_dev) {
                found.push(Breach::Forbidden { from: from.to_owned(), to: to.to_owned(), why });
            }
        }
    }
    found
}

/// Why a crate may not import another; nothing if it may.
fn judge(row: &Row, to: &str, is_ours: bool, is_dev: bool) -> Option<&'static str> {
    if to == STORE_LOCAL && !KNOW_STORE_LOCAL.contains(&row.name) {
        return Some("only what wires the whole knows the local store, tests included");
    }
    if is_dev {
        return None;
    }
    if is_ours && !row.may.contains(&to) {
        return Some("the table in `xtask/src/layers.rs` has no such edge");
    }
    if ONLY.iter().any(|(library, owners)| *library == to && !owners.contains(&row.name)) {
        return Some("it belongs to another crate, behind whose contract it stays hidden");
    }
    if NEVER.iter().any(|(name, libraries)| *name == row.name && libraries.contains(&to)) {
        return Some("the engine decides; what it decides about stays outside");
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn forbidden(from: &str, to: &str, kind: Value) -> bool {
        let other = json!({"name": to, "dependencies": []});
        let package = json!({"name": from, "dependencies": [{"name": to, "kind": kind}]});
        let packages = if to.starts_with("selvedge") { vec![package, other] } else { vec![package] };
        breaches(&json!({"packages": packages}))
            .iter()
            .any(|breach| matches!(breach, Breach::Forbidden { from: a, to: b, .. } if a == from && b == to))
    }

    #[test]
    fn every_crate_imports_only_what_it_may() {
        let breaches = breaches(&metadata().unwrap());
        let lines: Vec<_> = breaches.iter().map(Breach::to_string).collect();
        assert!(breaches.is_empty(), "{}", lines.join("\n"));
    }

    #[test]
    fn a_forbidden_import_is_found() {
        assert!(forbidden(MODEL, LOG, Value::Null));
        assert!(forbidden(MODEL, LOG, json!("build")));
        assert!(forbidden(STORE_LOCAL, STORE_POSTGRES, Value::Null));
        assert!(forbidden(ENGINE, TOOLS, Value::Null));
        assert!(forbidden(ENGINE, "reqwest", Value::Null));
        assert!(forbidden(CLI, "rusqlite", Value::Null));
        assert!(!forbidden(STORE_LOCAL, "rusqlite", Value::Null));
        assert!(!forbidden(CLI, ENGINE, Value::Null));
    }

    #[test]
    fn tests_may_import_anything_but_the_local_store() {
        assert!(!forbidden(LOG, STORE, json!("dev")));
        assert!(forbidden(ENGINE, STORE_LOCAL, json!("dev")));
        assert!(!forbidden(CLI, STORE_LOCAL, json!("dev")));
    }

    #[test]
    fn a_crate_without_a_row_is_named() {
        let metadata = json!({"packages": [{"name": "selvedge-novelty", "dependencies": []}]});
        assert_eq!(breaches(&metadata), [Breach::Unknown { name: "selvedge-novelty".to_owned() }]);
    }
}
