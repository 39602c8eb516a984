//! The helper: the same executable again, which restricts itself and becomes the program.
//!
//! A program that starts tools calls [`answer`] first thing in `main`.

use std::ffi::OsString;
use std::process::ExitCode;

/// The first argument of a helper.
pub const ARGUMENT: &str = "--selvedge-sandbox-helper";
/// A program that does nothing, to try whether a plan works.
pub(super) const NOTHING: &str = "nothing";
/// The exit code of a helper that could not apply its plan: the program was not started.
pub(super) const FAILED: u8 = 125;

/// Does what a helper does, if the arguments (with the program's own name) are those of a helper. It must be called before anything else:
/// a helper has one thread.
pub fn answer(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter().skip(1);
    if arguments.next()? != ARGUMENT {
        return None;
    }
    let arguments: Vec<OsString> = arguments.collect();
    Some(act(&arguments).unwrap_or_else(|why| {
        report(&why);
        ExitCode::from(FAILED)
    }))
}

/// Where the one who started it reads why the program did not run.
fn report(why: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "the sandbox can't be applied: {why}");
}

#[cfg(target_os = "linux")]
fn act(arguments: &[OsString]) -> Result<ExitCode, String> {
    use super::apply;
    let word = arguments.first().and_then(|word| word.to_str()).unwrap_or_default();
    match (word, &arguments[1.min(arguments.len())..]) {
        (NOTHING, _) => Ok(ExitCode::SUCCESS),
        ("try", [what, rest @ ..]) => Ok(super::trial::attempt(&what.to_string_lossy(), rest)),
        ("landlock", _) => {
            use std::io::Write as _;
            let written = writeln!(std::io::stdout(), "{}", apply::landlock_version()?);
            written.map(|()| ExitCode::SUCCESS).map_err(|error| error.to_string())
        }
        ("run", [plan, program @ ..]) if !program.is_empty() => apply::outer(&parsed(plan)?, plan, program),
        ("inner", [plan, program @ ..]) if !program.is_empty() => apply::inner(&parsed(plan)?, program),
        _ => Err("its arguments are wrong".to_owned()),
    }
}

#[cfg(not(target_os = "linux"))]
fn act(arguments: &[OsString]) -> Result<ExitCode, String> {
    match arguments.first().and_then(|word| word.to_str()) {
        Some("try") => {
            let rest = arguments.get(2..).unwrap_or_default();
            Ok(super::trial::attempt(&arguments.get(1).cloned().unwrap_or_default().to_string_lossy(), rest))
        }
        _ => Err("this operating system has none".to_owned()),
    }
}

#[cfg(target_os = "linux")]
fn parsed(plan: &OsString) -> Result<super::plan::Plan, String> {
    serde_json::from_str(&plan.to_string_lossy()).map_err(|error| format!("its plan: {error}"))
}
