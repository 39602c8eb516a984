//! LiteLLM's proxy for the tests, in a virtual environment of its own below `target`.
//!
//! It is installed once: about a minute, and 740 MB on disk. Its version and those of everything that it imports are fixed by
//! `xtask/litellm.txt`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::step::{Failure, Steps, root};

/// The environment variable by which a test finds the proxy.
pub(crate) const LITELLM: &str = "SELVEDGE_TEST_LITELLM";

const NAME: &str = "litellm proxy";
const REQUIREMENT: &str = "litellm[proxy]";

/// The proxy's program. It is installed if it is missing and `may_install`; where that fails it is skipped loudly, and in continuous
/// integration it is a failure.
pub(crate) fn litellm(steps: &mut Steps, may_install: bool) -> Result<Option<PathBuf>, Failure> {
    let folder = target().join("python").join("litellm");
    let program = folder.join("bin").join("litellm");
    let pins = root().join("xtask").join("litellm.txt");
    if is_installed(&folder, &pins) {
        return Ok(Some(program));
    }
    if !may_install {
        return Ok(None);
    }
    eprintln!("\n── {NAME}: pip install {REQUIREMENT} in {}", folder.display());
    let began = Instant::now();
    match install(&folder, &pins) {
        Ok(()) => {
            steps.took(NAME, began.elapsed());
            Ok(Some(program))
        }
        Err(why) if is_ci() => Err(Failure(format!("{NAME} can't be installed: {why}"))),
        Err(why) => {
            eprintln!("{why}");
            steps.skip(NAME, "it can't be installed; the tests that need it do nothing");
            Ok(None)
        }
    }
}

/// A copy of the pins is written when everything else is done: an installation that was interrupted or is another one has none like them.
fn is_installed(folder: &Path, pins: &Path) -> bool {
    let wanted = std::fs::read(pins).ok();
    wanted.is_some() && std::fs::read(mark(folder)).ok() == wanted
}

fn mark(folder: &Path) -> PathBuf {
    folder.join("installed.txt")
}

fn install(folder: &Path, pins: &Path) -> Result<(), String> {
    if folder.exists() {
        std::fs::remove_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    let mut pip = Command::new(folder.join("bin").join("python"));
    // Without a network it should not take minutes to say so.
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "20"]);
    run(pip.arg("-c").arg(pins).arg(REQUIREMENT))?;
    std::fs::copy(pins, mark(folder)).map(drop).map_err(|error| error.to_string())
}

fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{program}` failed ({status})")),
        Err(error) => Err(format!("`{program}` can't be started: {error}")),
    }
}

fn is_ci() -> bool {
    std::env::var("CI").as_deref() == Ok("true")
}

fn target() -> PathBuf {
    let named = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    named.map_or_else(|| root().join("target"), |named| root().join(named))
}
