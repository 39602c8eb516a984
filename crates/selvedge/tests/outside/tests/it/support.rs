//! A project in a folder of its own.

use selvedge::{Builder, Script, Scripted, Selvedge, Value};
use tempfile::TempDir;

pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// A builder on a folder, with a scripted model of these turns.
pub(crate) fn scripted(folder: &TempDir, turns: &Value) -> Builder {
    let script = Script::parse(&selvedge::json!({ "turns": turns }).to_string()).unwrap();
    Selvedge::builder().project(folder.path()).model("script", Scripted::new(script))
}
