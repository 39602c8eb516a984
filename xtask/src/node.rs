//! The MCP reference server *everything* for the tests, installed once by npm below `target`; only its own version is fixed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::python::{is_ci, target};
use crate::step::Steps;

/// The environment variable by which the test finds it.
pub(crate) const VARIABLE: &str = "SELVEDGE_TEST_MCP_EVERYTHING";
const NAME: &str = "MCP everything server";
const PACKAGE: &str = "@modelcontextprotocol/server-everything@2026.8.31";

/// The server's program. It is installed if it is missing; where that fails it is skipped loudly, and in continuous integration always.
pub(crate) fn find(steps: &mut Steps, filter: &[String]) -> Option<PathBuf> {
    let folder = target().join("node").join("everything");
    let program = folder.join("node_modules/.bin/mcp-server-everything");
    if program.exists() {
        return Some(program);
    }
    if !filter.is_empty() && !filter.iter().any(|word| word.contains("mcp")) {
        return None;
    }
    if is_ci() {
        steps.skip(NAME, "programs of other people are not started in continuous integration");
        return None;
    }
    eprintln!("\n── {NAME}: npm install {PACKAGE} in {}", folder.display());
    let began = Instant::now();
    match install(&folder) {
        Ok(()) if program.exists() => {
            steps.took(NAME, began.elapsed());
            Some(program)
        }
        installed => {
            eprintln!("{}", installed.err().unwrap_or_else(|| "it has no program".to_owned()));
            steps.skip(NAME, "it can't be installed; the tests that need it do nothing");
            None
        }
    }
}

fn install(folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--silent", "--no-audit", "--no-fund", "--fetch-retries=1", "--prefix"])
        .arg(folder)
        .arg(PACKAGE);
    match npm.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`npm` failed ({status})")),
        Err(error) => Err(format!("`npm` can't be started: {error}")),
    }
}
