//! Servers of other authors for the tests, each in a virtual environment of its own below `target`.
//!
//! Each is installed once; the versions of everything that it imports are fixed by a file beside this crate.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::step::{Failure, Steps, root};

/// A server that a test needs.
pub(crate) struct Server {
    /// What it is called in the report of the steps.
    name: &'static str,
    /// The folder of its environment.
    folder: &'static str,
    /// The file with the versions.
    pins: &'static str,
    /// What is installed.
    packages: &'static [&'static str],
    /// The program that the test starts.
    program: &'static str,
    /// The environment variable by which the test finds it.
    pub(crate) variable: &'static str,
    /// The word of a filter that asks for it.
    filter: &'static str,
    /// Whether continuous integration needs it; a server that it does not need is never installed there.
    in_ci: bool,
}

/// Every server: LiteLLM's proxy takes about a minute and 740 MB, llama.cpp's server 15 seconds and 210 MB, the MCP server 10 seconds and 70 MB.
pub(crate) const SERVERS: [Server; 3] = [
    Server {
        name: "litellm proxy",
        folder: "litellm",
        pins: "litellm.txt",
        packages: &["litellm[proxy]"],
        program: "litellm",
        variable: "SELVEDGE_TEST_LITELLM",
        filter: "litellm",
        in_ci: true,
    },
    Server {
        name: "llama.cpp server",
        folder: "llamacpp",
        pins: "llamacpp.txt",
        packages: &["xllamacpp", "gguf"],
        program: "python",
        variable: "SELVEDGE_TEST_LLAMACPP",
        filter: "llama",
        in_ci: true,
    },
    Server {
        name: "MCP time server",
        folder: "mcptime",
        pins: "mcptime.txt",
        packages: &["mcp-server-time"],
        program: "mcp-server-time",
        variable: "SELVEDGE_TEST_MCP_TIME",
        filter: "mcp",
        in_ci: false,
    },
];

impl Server {
    /// The server's program. It is installed if it is missing; where that fails it is skipped loudly, and in continuous integration it is a
    /// failure. Between two edits nothing is installed, unless the filter asks for it.
    pub(crate) fn find(&self, steps: &mut Steps, filter: &[String]) -> Result<Option<PathBuf>, Failure> {
        let folder = target().join("python").join(self.folder);
        let program = folder.join("bin").join(self.program);
        let pins = root().join("xtask").join(self.pins);
        if is_installed(&folder, &pins) {
            return Ok(Some(program));
        }
        if !filter.is_empty() && !filter.iter().any(|word| word.contains(self.filter)) {
            return Ok(None);
        }
        if is_ci() && !self.in_ci {
            steps.skip(self.name, "programs of other people are not started in continuous integration");
            return Ok(None);
        }
        eprintln!("\n── {}: pip install {} in {}", self.name, self.packages.join(" "), folder.display());
        let began = Instant::now();
        match self.install(&folder, &pins) {
            Ok(()) => {
                steps.took(self.name, began.elapsed());
                Ok(Some(program))
            }
            Err(why) if is_ci() => Err(Failure(format!("{} can't be installed: {why}", self.name))),
            Err(why) => {
                eprintln!("{why}");
                steps.skip(self.name, "it can't be installed; the tests that need it do nothing");
                Ok(None)
            }
        }
    }

    fn install(&self, folder: &Path, pins: &Path) -> Result<(), String> {
        if folder.exists() {
            std::fs::remove_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        run(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
        let mut pip = Command::new(folder.join("bin").join("python"));
        // Without a network it should not take minutes to say so.
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1"]);
        run(pip.args(["--timeout", "20", "-c"]).arg(pins).args(self.packages))?;
        std::fs::copy(pins, mark(folder)).map(drop).map_err(|error| error.to_string())
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

fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{program}` failed ({status})")),
        Err(error) => Err(format!("`{program}` can't be started: {error}")),
    }
}

pub(crate) fn is_ci() -> bool {
    std::env::var("CI").as_deref() == Ok("true")
}

pub(crate) fn target() -> PathBuf {
    let named = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    named.map_or_else(|| root().join("target"), |named| root().join(named))
}
