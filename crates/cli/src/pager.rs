//! Long text on a terminal: through the user's pager.
//!
//! `PAGER` names it; without one it is `less -R` where that is installed. An empty `PAGER`, or `cat`, means none.

use std::env;
use std::io::{self, IsTerminal, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use crate::error::Result;
use crate::output::Output;

/// Shows a text whose foreign parts were cleaned: in the pager if stdout is a terminal and the user wants one.
pub(crate) fn show(text: &str, wants_pager: bool, output: &Output) -> Result<()> {
    let is_shown = wants_pager && io::stdout().is_terminal() && pager().is_some_and(|pager| page(pager, text).is_ok());
    if is_shown { Ok(()) } else { output.text(text.trim_end_matches('\n')) }
}

/// The command of the pager; nothing if there is none.
fn pager() -> Option<Command> {
    let mut command = match env::var("PAGER") {
        Ok(chosen) if chosen.trim().is_empty() || chosen.trim() == "cat" => return None,
        Ok(chosen) => {
            // As a shell reads it: it may have flags.
            let mut shell = Command::new("sh");
            shell.args(["-c", &chosen]);
            shell
        }
        Err(_) => {
            let mut less = Command::new("less");
            less.arg("-R");
            less
        }
    };
    if env::var_os("LESS").is_none() {
        // Colours, no pager for what fits the screen, and what was shown stays on the screen.
        command.env("LESS", "FRX");
    }
    Some(command)
}

/// Shows a text in a pager; an error if it could not be started.
fn page(mut pager: Command, text: &str) -> io::Result<()> {
    // Ctrl-C is the pager's while it runs.
    let ended = crate::INTERRUPTS_END.swap(false, Ordering::SeqCst);
    let shown = pager.stdin(Stdio::piped()).spawn().and_then(|mut child| {
        if let Some(mut stdin) = child.stdin.take() {
            // A person who leaves the pager does not read on.
            _ = stdin.write_all(text.as_bytes());
        }
        child.wait()
    });
    crate::INTERRUPTS_END.store(ended, Ordering::SeqCst);
    match shown?.code() {
        // A shell that does not find the program.
        Some(126 | 127) => Err(io::ErrorKind::NotFound.into()),
        _ => Ok(()),
    }
}
