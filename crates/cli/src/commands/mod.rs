//! One file per command: its flags, what it asks of the store, what it shows.

pub(crate) mod append;
pub(crate) mod demo;
pub(crate) mod init;
pub(crate) mod log;
pub(crate) mod state;
pub(crate) mod status;
pub(crate) mod thread_delete;
pub(crate) mod thread_find;
pub(crate) mod thread_list;
pub(crate) mod thread_new;
pub(crate) mod thread_rename;
pub(crate) mod thread_show;
pub(crate) mod verify;

use crate::args::{Command, ThreadCommand};
use crate::context::Context;
use crate::error::Result;

/// Runs a command; without one, says where we are.
pub(crate) fn run(command: Option<Command>, context: &Context<'_>) -> Result<()> {
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
