//! The `selvedge` command: wiring and rendering only.
//!
//! In reading order:
//!
//! - `args`: what can be typed. `context`: which project, whose keys, which store.
//! - `commands`: one file each. `commit`: committing with bounded patience.
//! - `output`: the one door to the terminal; `text`, `gist`: how things are put into words. `error`: exit codes.

mod args;
mod commands;
mod commit;
mod context;
mod error;
mod gist;
mod output;
mod text;

use std::process::ExitCode;

use crate::context::Context;
use crate::output::Output;

fn main() -> ExitCode {
    let cli = match args::parse() {
        Ok(cli) => cli,
        Err(refused) => return refused,
    };
    let output = Output::new(&cli.global);
    let outcome = Context::new(&cli.global, &output).and_then(|context| commands::run(cli.command, &context));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output.error(&failure);
            failure.exit.into()
        }
    }
}
