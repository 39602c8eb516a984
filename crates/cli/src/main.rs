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

use crate::args::{Command, ThreadCommand};
use crate::commands::{
    append, demo, init, log, state, status, thread_delete, thread_find, thread_list, thread_new, thread_rename,
    thread_show, verify,
};
use crate::context::Context;
use crate::error::Result;
use crate::output::Output;

fn main() -> ExitCode {
    let cli = match args::parse() {
        Ok(cli) => cli,
        Err(refused) => return refused,
    };
    let output = Output::new(&cli.global);
    let outcome = Context::new(&cli.global, &output).and_then(|context| run(cli.command, &context));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output.error(&failure);
            failure.exit.into()
        }
    }
}

/// Runs a command; without one, says where we are.
fn run(command: Option<Command>, context: &Context<'_>) -> Result<()> {
    match command {
        None => status::run(context),
        Some(Command::Demo(args)) => demo::run(args, context),
        Some(Command::DemoWriter(args)) => demo::writer::run(&args, context),
        Some(Command::Init(args)) => init::run(args, context),
        Some(Command::Thread(ThreadCommand::New(args))) => thread_new::run(args, context),
        Some(Command::Thread(ThreadCommand::List(args))) => thread_list::run(args, context),
        Some(Command::Thread(ThreadCommand::Show(args))) => thread_show::run(&args, context),
        Some(Command::Thread(ThreadCommand::Find(args))) => thread_find::run(args, context),
        Some(Command::Thread(ThreadCommand::Rename(args))) => thread_rename::run(args, context),
        Some(Command::Thread(ThreadCommand::Delete(args))) => thread_delete::run(&args, context),
        Some(Command::Append(args)) => append::run(args, context),
        Some(Command::Log(args)) => log::run(&args, context),
        Some(Command::State(args)) => state::run(&args, context),
        Some(Command::Verify(args)) => verify::run(&args, context),
    }
}
