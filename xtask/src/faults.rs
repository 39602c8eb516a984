//! `cargo xtask faults`: breaks one line of our own code at a time; the tests must notice.
//!
//! Each fault is applied to a copy of the tree, compiled, and run against what must catch it: an experiment of the laboratory or some named
//! tests. It counts as caught only if one of those reports what is wrong: a violated guarantee, a failed assertion. A process that crashes,
//! runs out of memory or time, or can't be started has caught nothing. Before that, those must pass without any fault, or their failure
//! would prove nothing. The results are written to `docs/FAULTS.md`. It takes as long as that many compilations; the ordinary tests only
//! check that every fault still applies.

use std::fmt::Write;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::step::{Failure, root};

mod table;

use table::FAULTS;

/// One line to break.
pub(crate) struct Fault {
    /// What is broken.
    pub(crate) name: &'static str,
    /// The file.
    pub(crate) file: &'static str,
    /// The original text, which must occur once.
    pub(crate) old: &'static str,
    /// The replacement.
    pub(crate) new: &'static str,
    /// What must catch it.
    pub(crate) by: Catcher,
}

/// What must catch a fault.
#[derive(PartialEq)]
pub(crate) enum Catcher {
    /// An experiment of the laboratory on a scenario; the words as `cargo xtask crash` takes them.
    Lab(&'static [&'static str]),
    /// The tests of this package whose names have this text.
    Tests(&'static str, &'static str),
}

impl std::fmt::Display for Catcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lab(words) => write!(f, "laboratory: {}", words.join(" ").replace("--", "")),
            Self::Tests(package, filter) => write!(f, "tests of {package}: `{filter}`"),
        }
    }
}

/// How long catching may take, without compiling.
const BUDGET: Duration = Duration::from_secs(120);
/// How much memory it may take: broken code may never stop.
const MEMORY_KIB: u64 = 12 << 20;

/// The result of a fault.
enum FaultResult {
    Caught(Duration),
    Survived,
    /// It failed, but did not report what is wrong.
    Crashed(String),
    TookTooLong,
    /// It does not compile, or the tests can't be started.
    Unusable(String),
}

pub(crate) fn run(filter: &[String]) -> Result<(), Failure> {
    let failed = |what: &'static str| move |error: std::io::Error| Failure(format!("{what}: {error}"));
    let copy = std::env::temp_dir().join("selvedge-faults");
    copy_tree(&root(), &copy).map_err(failed("the tree can't be copied"))?;
    let mut rows = Vec::new();
    let tree = commit();
    let chosen: Vec<&Fault> = FAULTS
        .iter()
        .filter(|fault| filter.is_empty() || filter.iter().any(|text| fault.name.contains(text.as_str())))
        .collect();
    let unusable = failing_without_fault(&copy, &chosen);
    for (number, fault) in chosen.iter().enumerate() {
        let path = copy.join(fault.file);
        let whole = fs::read_to_string(&path).map_err(failed(fault.file))?;
        fs::write(&path, apply(fault, &whole)?).map_err(failed(fault.file))?;
        let came = if unusable.contains(&&fault.by) {
            FaultResult::Unusable("what must catch it fails without it, too".to_owned())
        } else {
            run_catcher(&copy, &fault.by)
        };
        fs::write(&path, whole).map_err(failed(fault.file))?;
        let text = match &came {
            FaultResult::Caught(took) => format!("caught in {:.1} s, at `{tree}`", took.as_secs_f64()),
            FaultResult::Survived => "NOT CAUGHT".to_owned(),
            FaultResult::Crashed(how) => format!("NOT CAUGHT by an assertion: {how}"),
            FaultResult::TookTooLong => format!("NOT CAUGHT within {} s", BUDGET.as_secs()),
            FaultResult::Unusable(why) => format!("UNUSABLE: {why}"),
        };
        eprintln!("{:>2}/{} {}: {text}", number + 1, chosen.len(), fault.name);
        rows.push((*fault, came, text));
        // Written at once, so that an interrupted run is not lost.
        let page = root().join("docs/FAULTS.md");
        let before = fs::read_to_string(&page).unwrap_or_default();
        fs::write(&page, report(&rows, &before)).map_err(failed("docs/FAULTS.md"))?;
    }
    let missed = rows.iter().filter(|(_, came, _)| !matches!(came, FaultResult::Caught(_))).count();
    match missed {
        0 => Ok(()),
        _ => Err(Failure(format!("{missed} of {} faults were not caught: each is a missing test", rows.len()))),
    }
}

/// The tested commit, with a `+` if the tree has uncommitted changes.
fn commit() -> String {
    let git = |words: &[&str]| {
        let output = Command::new("git")
            .args(words)
            .current_dir(root())
            .output()
            .ok()
            .filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok()
    };
    let is_changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|changed| !changed.is_empty());
    let name =
        git(&["rev-parse", "--short=10", "HEAD"]).map_or_else(|| "unknown".to_owned(), |name| name.trim().to_owned());
    if is_changed { format!("{name}+") } else { name }
}

/// The text with the fault applied; the original text must occur exactly once.
fn apply(fault: &Fault, whole: &str) -> Result<String, Failure> {
    match whole.matches(fault.old).count() {
        1 => Ok(whole.replacen(fault.old, fault.new, 1)),
        count => Err(Failure(format!("fault `{}`: its text occurs {count} times in {}", fault.name, fault.file))),
    }
}

/// The catchers that fail, or can't be started, without a fault.
fn failing_without_fault<'a>(copy: &Path, chosen: &[&'a Fault]) -> Vec<&'a Catcher> {
    let mut tried: Vec<&Catcher> = Vec::new();
    let mut unfit = Vec::new();
    for fault in chosen {
        if tried.contains(&&fault.by) {
            continue;
        }
        tried.push(&fault.by);
        // A timeout is not a failure.
        if !matches!(run_catcher(copy, &fault.by), FaultResult::Survived | FaultResult::TookTooLong) {
            eprintln!("fails without any fault: {}", fault.by);
            unfit.push(&fault.by);
        }
    }
    unfit
}

/// Compiles the copy, and runs what must catch the fault.
fn run_catcher(copy: &Path, by: &Catcher) -> FaultResult {
    let cargo = |words: &[&str]| {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(words).current_dir(copy).env("CARGO_TARGET_DIR", copy.join("target"));
        // As if called by hand: not as part of the build that runs us.
        for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "RUSTC_WRAPPER"] {
            command.env_remove(name);
        }
        command
    };
    let (build, catch) = match by {
        Catcher::Lab(words) => {
            let mut catch = Command::new(copy.join("target/debug/lab"));
            catch.args(*words).args(["--seed", "1", "--first"]);
            (vec!["build", "--quiet", "--package", "selvedge-testkit"], catch)
        }
        Catcher::Tests(package, filter) => {
            let catch = cargo(&["test", "--quiet", "--package", package, "--lib", "--tests", "--", filter]);
            (vec!["test", "--quiet", "--no-run", "--package", package, "--lib", "--tests"], catch)
        }
    };
    match cargo(&build).stdout(Stdio::null()).stderr(Stdio::piped()).output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            return FaultResult::Unusable(text.lines().find(|line| line.starts_with("error")).unwrap_or("").to_owned());
        }
        Err(error) => return FaultResult::Unusable(error.to_string()),
    }
    let began = Instant::now();
    match run_bounded(catch, &copy.join("target/output")) {
        Ok(None) => FaultResult::TookTooLong,
        Ok(Some((status, _))) if status.success() => FaultResult::Survived,
        Ok(Some((status, output))) if reports_a_failure(by, status.code(), &output) => {
            FaultResult::Caught(began.elapsed())
        }
        Ok(Some((status, _))) => FaultResult::Crashed(status.to_string()),
        Err(error) => FaultResult::Unusable(error.to_string()),
    }
}

/// Runs what must catch a fault, within its time and memory; returns how it ended and its output, or none after a timeout.
fn run_bounded(catch: Command, said: &Path) -> std::io::Result<Option<(ExitStatus, String)>> {
    let words = std::iter::once(catch.get_program()).chain(catch.get_args());
    let mut bounded = Command::new("sh");
    bounded.args(["-c", &format!("ulimit -v {MEMORY_KIB}; exec \"$@\""), "sh"]).args(words);
    bounded.env("RUST_BACKTRACE", "0");
    for (name, value) in catch.get_envs() {
        match value {
            Some(value) => bounded.env(name, value),
            None => bounded.env_remove(name),
        };
    }
    if let Some(folder) = catch.get_current_dir() {
        bounded.current_dir(folder);
    }
    let output = fs::File::create(said)?;
    // Its child processes are ended with it.
    let mut child = bounded.process_group(0).stdout(output.try_clone()?).stderr(output).spawn()?;
    let until = Instant::now() + BUDGET;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
            None => {
                _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status();
                child.wait()?;
                return Ok(None);
            }
        }
    };
    Ok(Some((status, String::from_utf8_lossy(&fs::read(said)?).into_owned())))
}

/// Whether a failure was reported: a violated guarantee, or a failed assertion of a test.
fn reports_a_failure(by: &Catcher, code: Option<i32>, said: &str) -> bool {
    match by {
        // 2 means that it could not be tried.
        Catcher::Lab(_) => code == Some(1),
        Catcher::Tests(..) => code == Some(101) && said.contains("test result: FAILED") && said.contains("panicked at"),
    }
}

/// Copies the sources; build output stays where it is. An unchanged file is not copied again, so that less is compiled.
fn copy_tree(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        if ["target", ".git", ".ai", "docs"].iter().any(|left| name == *left) {
            continue;
        }
        let target: PathBuf = to.join(&name);
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else if entry.file_type()?.is_file() {
            let bytes = fs::read(entry.path())?;
            if fs::read(&target).ok().as_ref() != Some(&bytes) {
                fs::write(&target, bytes)?;
            }
        }
    }
    Ok(())
}

/// The page: the results of the faults that were tried now, and of the others the earlier results.
fn report(rows: &[(&Fault, FaultResult, String)], before: &str) -> String {
    let beginning = |fault: &Fault| format!("| {} | `{}` | {} | ", fault.name, fault.file, fault.by);
    let result = |fault: &Fault| {
        let now = rows.iter().find(|(tried, ..)| tried.name == fault.name).map(|(.., result)| result.clone());
        let then = before.lines().find_map(|line| line.strip_prefix(&beginning(fault))?.strip_suffix(" |"));
        now.or(then.map(str::to_owned)).unwrap_or_else(|| "not tried yet".to_owned())
    };
    let results: Vec<_> = FAULTS.iter().map(|fault| (fault, result(fault))).collect();
    let caught = results.iter().filter(|(_, result)| result.starts_with("caught")).count();
    let mut text = format!(
        "# Seeded faults\n\nWritten by `cargo xtask faults`. Each line below was broken by itself in a copy of the tree. The tests beside it, which pass without\n\
         the fault, had to report what is wrong within {} s, without compiling: a crash is not counted. {caught} of {} were caught. A row without a commit is older than this note.\n\n| fault | in | caught by | result |\n|---|---|---|---|\n",
        BUDGET.as_secs(),
        FAULTS.len()
    );
    for (fault, result) in results {
        _ = writeln!(text, "{}{result} |", beginning(fault));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_applies_exactly_once() {
        assert!(FAULTS.len() >= 25, "only {} faults", FAULTS.len());
        for fault in FAULTS {
            let whole = fs::read_to_string(root().join(fault.file)).unwrap();
            let broken = apply(fault, &whole).unwrap_or_else(|failure| panic!("{failure}"));
            assert_ne!(broken, whole, "{}", fault.name);
        }
    }

    #[test]
    fn only_a_reported_failure_counts_as_caught() {
        let lab = Catcher::Lab(&[]);
        let tests = Catcher::Tests("a", "b");
        assert!(reports_a_failure(&lab, Some(1), ""));
        assert!(!reports_a_failure(&lab, Some(2), "") && !reports_a_failure(&lab, None, ""));
        let failed = "thread 'a' panicked at b.rs\ntest result: FAILED. 1 passed; 1 failed";
        assert!(reports_a_failure(&tests, Some(101), failed));
        let aborted = "process didn't exit successfully: `a` (signal: 6, SIGABRT: process abort signal)";
        assert!(!reports_a_failure(&tests, Some(101), aborted) && !reports_a_failure(&tests, Some(1), failed));
    }

    #[test]
    fn a_process_that_takes_too_much_memory_is_ended() {
        let mut hungry = Command::new("sh");
        hungry.args(["-c", "ulimit -v"]);
        let said = std::env::temp_dir().join(format!("selvedge-faults-said-{}", std::process::id()));
        let (status, bound) = run_bounded(hungry, &said).unwrap().unwrap();
        fs::remove_file(&said).unwrap();
        assert!(status.success());
        assert_eq!(bound.trim(), MEMORY_KIB.to_string());
    }

    #[test]
    fn every_fault_has_a_unique_name() {
        for (index, fault) in FAULTS.iter().enumerate() {
            assert!(FAULTS[..index].iter().all(|other| other.name != fault.name), "{}", fault.name);
        }
    }
}
