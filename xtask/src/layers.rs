//! `cargo xtask layers`: which crate may import which.
//!
//! A crate exists to forbid an import, and this enforces it. Dev-dependencies are free, except the local store: tests against it instead of
//! the contracts belong elsewhere.

use std::fmt;

use serde_json::Value;

use crate::step::{Failure, cargo};

/// What one crate may import of ours.
struct Layer {
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

/// Every crate of the workspace, from the one that imports none of the others to those that wire all.
const TABLE: [Layer; 18] = [
    Layer { name: MODEL, may: &[] },
    Layer { name: LOG, may: &[MODEL] },
    Layer { name: STORE, may: &[MODEL, LOG] },
    Layer { name: LEGACY, may: &[MODEL, LOG, STORE] },
    Layer { name: ITEMS, may: &[MODEL, LOG, LEGACY] },
    Layer { name: STORE_LOCAL, may: &[MODEL, LOG, STORE] },
    Layer { name: STORE_POSTGRES, may: &[MODEL, LOG, STORE] },
    Layer { name: PROVIDERS, may: &[MODEL] },
    Layer { name: TOOLS, may: &[MODEL] },
    Layer { name: ENGINE, may: &[MODEL, LOG, ITEMS, STORE] },
    Layer {
        name: FACADE,
        may: &[MODEL, LOG, LEGACY, ITEMS, STORE, STORE_LOCAL, STORE_POSTGRES, PROVIDERS, TOOLS, ENGINE],
    },
    // It adds no meaning: every request is a call of the façade.
    Layer { name: SERVER, may: &[MODEL, LOG, STORE, FACADE] },
    Layer {
        name: CLI,
        may: &[MODEL, LOG, LEGACY, ITEMS, STORE, STORE_LOCAL, STORE_POSTGRES, PROVIDERS, TOOLS, ENGINE, SERVER, FACADE],
    },
    // An outside program: it imports only the façade.
    Layer { name: OUTSIDE, may: &[FACADE] },
    Layer { name: TESTKIT, may: &[MODEL, LOG, LEGACY, ITEMS, STORE, STORE_LOCAL, PROVIDERS, ENGINE] },
    Layer {
        name: BENCH,
        may: &[MODEL, LOG, ITEMS, STORE, STORE_LOCAL, STORE_POSTGRES, PROVIDERS, TOOLS, ENGINE, SERVER, FACADE],
    },
    Layer { name: FUZZ, may: &[MODEL, LOG, LEGACY, ITEMS, STORE, STORE_LOCAL, PROVIDERS, ENGINE] },
    // Compiled before anything else, so it imports none of ours.
    Layer { name: "xtask", may: &[] },
];

/// The crates that may import the local store, tests included.
const MAY_IMPORT_STORE_LOCAL: [&str; 7] = [STORE_LOCAL, FACADE, CLI, TESTKIT, BENCH, FUZZ, "xtask"];

/// Third-party crates that only these of ours may import.
const ONLY: [(&str, &[&str]); 1] = [("rusqlite", &[STORE_LOCAL])];

/// Third-party crates that one of ours may not import.
const NEVER: [(&str, &[&str]); 1] = [(ENGINE, &["axum", "reqwest", "rusqlite", "tokio-postgres"])];

/// A violation by one crate.
#[derive(Debug, PartialEq, Eq)]
enum Breach {
    /// It is not in the table.
    Unknown { name: String },
    /// It has a forbidden import.
    Forbidden { from: String, to: String, why: &'static str },
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name } => {
                write!(f, "`{name}` is not in the table: add to `xtask/src/layers.rs` what it may import")
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
    serde_json::from_slice(&output.stdout)
        .map_err(|error| Failure(format!("`cargo metadata` returned no JSON: {error}")))
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

/// Why a crate may not import another; none if it may.
fn judge(row: &Layer, to: &str, is_ours: bool, is_dev: bool) -> Option<&'static str> {
    if to == STORE_LOCAL && !MAY_IMPORT_STORE_LOCAL.contains(&row.name) {
        return Some("only crates that wire the whole may import the local store, tests included");
    }
    if is_dev {
        return None;
    }
    if is_ours && !row.may.contains(&to) {
        return Some("the table in `xtask/src/layers.rs` has no such edge");
    }
    if ONLY.iter().any(|(library, owners)| *library == to && !owners.contains(&row.name)) {
        return Some("it belongs to another crate, which hides it behind its contract");
    }
    if NEVER.iter().any(|(name, libraries)| *name == row.name && libraries.contains(&to)) {
        return Some("the engine only decides; I/O stays outside");
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
    fn a_crate_that_is_not_in_the_table_is_reported() {
        let metadata = json!({"packages": [{"name": "selvedge-novelty", "dependencies": []}]});
        assert_eq!(breaches(&metadata), [Breach::Unknown { name: "selvedge-novelty".to_owned() }]);
    }
}
