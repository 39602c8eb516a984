//! One command of a verb: printed before it runs, timed, and fatal if it fails.

use std::fmt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Why a verb stopped.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The steps so far, and how long each took.
#[derive(Default)]
pub(crate) struct Steps {
    done: Vec<(&'static str, Result<Duration, &'static str>)>,
}

impl Steps {
    /// Runs a command; its output goes to ours.
    pub(crate) fn run(&mut self, name: &'static str, command: &mut Command) -> Result<(), Failure> {
        eprintln!("\n── {name}: {}", shown(command));
        let began = Instant::now();
        let status = command.status().map_err(|error| Failure(format!("`{name}` can't be started: {error}")))?;
        if !status.success() {
            return Err(Failure(format!("`{name}` failed ({status}): {}", shown(command))));
        }
        self.done.push((name, Ok(began.elapsed())));
        Ok(())
    }

    /// Records a step that was done outside of [`Self::run`].
    pub(crate) fn took(&mut self, name: &'static str, time: Duration) {
        self.done.push((name, Ok(time)));
    }

    /// Prints that a step is skipped.
    pub(crate) fn skip(&mut self, name: &'static str, why: &'static str) {
        eprintln!("\n!! {name} SKIPPED: {why}");
        self.done.push((name, Err(why)));
    }

    /// Prints how long each step took.
    pub(crate) fn print_times(&self) {
        let width = self.done.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        eprintln!();
        for (name, took) in &self.done {
            match took {
                Ok(took) => eprintln!("{name:<width$}  {:6.1} s", took.as_secs_f64()),
                Err(why) => eprintln!("{name:<width$}  SKIPPED: {why}"),
            }
        }
    }
}

/// Cargo, in the workspace's folder; the same cargo that runs us, without what it told us about our own package: a build script of a
/// dependency (`ring`) watches these variables, and would be run again, with all that depends on it, after each plain `cargo build`.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            command.env_remove(name);
        }
    }
    command
}

/// Whether `cargo VERB` is installed.
pub(crate) fn has(verb: &str) -> bool {
    let mut command = cargo(&[verb, "--version"]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// The workspace's folder. Cargo passes it at run time; the compiled-in path would be wrong after a move.
pub(crate) fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    here.parent().map_or(here.clone(), std::path::Path::to_owned)
}

fn shown(command: &Command) -> String {
    let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
    ["cargo".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}
