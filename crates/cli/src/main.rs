//! The `selvedge` command: wiring and rendering only.
//!
//! In reading order:
//!
//! - `args`: the command line. `context`: project, keys and store. `document`: signed files.
//! - `commands`: one file each. `commit`: committing with a deadline.
//! - `codes`: a page for every error code. `examples`: the examples in every command's help.
//! - `running`: shared by the commands that run threads. `needs`: what threads wait for. `scaffold`: sample files; `new_file`: how they are
//!   written.
//! - `output`: all output to the terminal; `pager`: for long text; `text`, `event_summary`, `imported`, `items`: formatting for people. `error`: exit
//!   codes.

mod args;
mod codes;
mod commands;
mod commit;
mod config;
mod context;
mod document;
mod error;
mod event_summary;
mod examples;
mod hints;
mod imported;
mod input;
mod items;
mod limit;
mod needs;
mod new_file;
mod output;
mod pager;
mod permission;
mod project_files;
mod running;
mod scaffold;
mod screen;
mod text;
mod visible_models;

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock};

use selvedge_model::Stop;

use crate::args::{
    AgentCommand, Command, ConfigCommand, DirectiveCommand, GraphCommand, HeadsCommand, HooksCommand, KeysCommand,
    KnowledgeCommand, McpCommand, ModelCommand, SandboxCommand, StoreCommand, ThreadCommand, TokenCommand, ToolCommand,
};
use crate::commands::sandbox_check;
use crate::commands::{
    agent_list, agent_new, append, backup, budget, chain, completions, config_check, config_explain, config_get,
    config_list, decide, demo, directive_check, directive_list, doctor, erase, export, heads, help, import, inbox,
    init, keys_export, keys_list, keys_revoke, keys_rotate, keys_trust, log, man, model_check, model_list, model_show,
    prune, reindex, repair, replay, restore, resume, run, search, send, sign, snapshots, state, status, stop,
    thread_delete, thread_find, thread_list, thread_new, thread_rename, thread_show, tool_list, tree, usage, verify,
    wait,
};
use crate::commands::{blob, chat, directive_new, hooks_list, hooks_test, tool_new, transcript};
use crate::commands::{graph_check, graph_list, graph_new, graph_run, graph_show};
use crate::commands::{knowledge_check, knowledge_new, knowledge_search, knowledge_show, knowledge_sign};
use crate::commands::{mcp_add, mcp_approve, mcp_check, mcp_list};
use crate::commands::{serve, token_list, token_new, token_revoke};
use crate::commands::{store_copy, store_status};
use crate::context::Context;
use crate::error::Result;
use crate::output::Output;

/// Whether Ctrl-C ends the process at once; a command that runs a thread handles it itself.
static INTERRUPTS_END: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(true)));

/// How often a command is run again after a key rotation.
const ROTATIONS: usize = 10;

fn main() -> ExitCode {
    // Before anything else: a helper has one thread, and restricts itself.
    if let Some(code) = selvedge::tools::sandbox::helper::answer(std::env::args_os()) {
        return code;
    }
    match completions::answer() {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(failure) => return args::refuse(&failure),
    }
    let cli = match args::parse() {
        Ok(cli) => cli,
        Err(refused) => return refused,
    };
    end_with_130_when_interrupted();
    let output = Output::new(&cli.global);
    let outcome = Context::new(&cli.global, &output).and_then(|context| run_past_rotations(cli.command, &context));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let failure = hints::without_trust(failure);
            output.error(&failure);
            failure.exit.into()
        }
    }
}

/// An interrupted command ends at once, as if killed: only what it acknowledged stays. The exit code tells the calling program
/// that it was interrupted.
fn end_with_130_when_interrupted() {
    let at_once = INTERRUPTS_END.clone();
    // If the handler can't be installed, the default ends the process as well.
    _ = signal_hook::flag::register_conditional_shutdown(signal_hook::consts::SIGINT, 130, at_once);
}

/// Runs a command, and again each time the key was rotated while it ran: a refused command leaves nothing behind.
fn run_past_rotations(mut command: Option<Command>, context: &Context<'_>) -> Result<()> {
    for _ in 0..ROTATIONS {
        let failure = match run_and_tell(command, context) {
            Err(failure) if context.is_overtaken_by_rotation(&failure) => failure,
            outcome => return outcome,
        };
        command = args::parse().map_err(|_| failure)?.command;
    }
    run_and_tell(command, context)
}

/// Runs a command, and says what its stores found amiss, however it ended.
fn run_and_tell(command: Option<Command>, context: &Context<'_>) -> Result<()> {
    let ended = run_command(command, context);
    context.tell_problems();
    ended
}

/// Runs a command; without one, shows the status of the project.
fn run_command(command: Option<Command>, context: &Context<'_>) -> Result<()> {
    match command {
        None => status::run(context),
        Some(Command::Demo(args)) => demo::run(args, context),
        Some(Command::Init(args)) => init::run(args, context),
        Some(Command::Thread(ThreadCommand::New(args))) => thread_new::run(args, context),
        Some(Command::Thread(ThreadCommand::List(args))) => thread_list::run(args, context),
        Some(Command::Thread(ThreadCommand::Show(args))) => thread_show::run(&args, context),
        Some(Command::Thread(ThreadCommand::Find(args))) => thread_find::run(args, context),
        Some(Command::Thread(ThreadCommand::Rename(args))) => thread_rename::run(args, context),
        Some(Command::Thread(ThreadCommand::Delete(args))) => thread_delete::run(&args, context),
        Some(Command::Run(args)) => run::run(args, context),
        Some(Command::Chat(args)) => chat::run(args, context),
        Some(Command::Search(args)) => search::run(args, context),
        Some(Command::Usage(args)) => usage::run(&args, context),
        Some(Command::Transcript(args)) => transcript::run(&args, context),
        Some(Command::Blob(args)) => blob::run(&args, context),
        Some(Command::Directive(DirectiveCommand::New(args))) => directive_new::run(&args, context),
        Some(Command::Tool(ToolCommand::New(args))) => tool_new::run(&args, context),
        Some(Command::Send(args)) => send::run(&args, context),
        Some(Command::Resume(args)) => resume::run(&args, context),
        Some(Command::Cancel(args)) => stop::run(&args, Stop::Cancelled, context),
        Some(Command::Kill(args)) => stop::run(&args, Stop::Killed, context),
        Some(Command::Settle(args)) => decide::settle(args, context),
        Some(Command::Approve(args)) => decide::approve(args, context),
        Some(Command::Deny(args)) => decide::deny(args, context),
        Some(Command::Inbox(args)) => inbox::run(&args, context),
        Some(Command::Wait(args)) => wait::run(&args, context),
        Some(Command::Chain(args)) => chain::run(&args, context),
        Some(Command::Tree(args)) => tree::run(&args, context),
        Some(Command::Budget(args)) => budget::run(&args, context),
        Some(Command::Agent(AgentCommand::New(args))) => agent_new::run(&args, context),
        Some(Command::Agent(AgentCommand::List(args))) => agent_list::run(args, context),
        Some(Command::Directive(DirectiveCommand::List(args))) => directive_list::run(args, context),
        Some(Command::Directive(DirectiveCommand::Check(args))) => directive_check::run(&args, context),
        Some(Command::Graph(command)) => match command {
            GraphCommand::New(args) => graph_new::run(&args, context),
            GraphCommand::List(args) => graph_list::run(args, context),
            GraphCommand::Check(args) => graph_check::run(&args, context),
            GraphCommand::Show(args) => graph_show::run(&args, context),
            GraphCommand::Run(args) => graph_run::run(args, context),
        },
        Some(Command::Tool(ToolCommand::List(args))) => tool_list::run(args, context),
        Some(Command::Knowledge(command)) => match command {
            KnowledgeCommand::Search(args) => knowledge_search::run(&args, context),
            KnowledgeCommand::Show(args) => knowledge_show::run(&args, context),
            KnowledgeCommand::New(args) => knowledge_new::run(&args, context),
            KnowledgeCommand::Sign(args) => knowledge_sign::run(&args, context),
            KnowledgeCommand::Check(args) => knowledge_check::run(&args, context),
        },
        Some(Command::Mcp(command)) => match command {
            McpCommand::Add(args) => mcp_add::run(&args, context),
            McpCommand::List(args) => mcp_list::run(args, context),
            McpCommand::Check(args) => mcp_check::run(&args, context),
            McpCommand::Approve(args) => mcp_approve::run(&args, context),
        },
        Some(Command::Sandbox(SandboxCommand::Check(args))) => sandbox_check::run(args, context),
        Some(Command::Hooks(HooksCommand::List(args))) => hooks_list::run(&args, context),
        Some(Command::Hooks(HooksCommand::Test(args))) => hooks_test::run(&args, context),
        Some(Command::Model(ModelCommand::List(args))) => model_list::run(&args, context),
        Some(Command::Model(ModelCommand::Show(args))) => model_show::run(&args, context),
        Some(Command::Model(ModelCommand::Check(args))) => model_check::run(&args, context),
        Some(Command::Config(ConfigCommand::List(args))) => config_list::run(&args, context),
        Some(Command::Config(ConfigCommand::Get(args))) => config_get::run(&args, context),
        Some(Command::Config(ConfigCommand::Explain(args))) => config_explain::run(&args, context),
        Some(Command::Config(ConfigCommand::Check(args))) => config_check::run(&args, context),
        Some(Command::Serve(args)) => serve::run(args, context),
        Some(Command::Token(TokenCommand::New(args))) => token_new::run(args, context),
        Some(Command::Token(TokenCommand::List(args))) => token_list::run(args, context),
        Some(Command::Token(TokenCommand::Revoke(args))) => token_revoke::run(&args, context),
        Some(Command::Append(args)) => append::run(args, context),
        Some(Command::Log(args)) => log::run(&args, context),
        Some(Command::Snapshots(args)) => snapshots::run(&args, context),
        Some(Command::State(args)) => state::run(&args, context),
        Some(Command::Verify(args)) => verify::run(&args, context),
        Some(Command::Replay(args)) => replay::run(&args, context),
        Some(Command::Doctor(args)) => doctor::run(&args, context),
        Some(Command::Backup(args)) => backup::run(&args, context),
        Some(Command::Restore(args)) => restore::run(&args, context),
        Some(Command::Heads(HeadsCommand::Export(args))) => heads::export(&args, context),
        Some(Command::Heads(HeadsCommand::Verify(args))) => heads::verify(&args, context),
        Some(Command::Store(StoreCommand::Copy(args))) => store_copy::run(&args, context),
        Some(Command::Store(StoreCommand::Status(_))) => store_status::run(context),
        Some(Command::Erase(args)) => erase::run(&args, context),
        Some(Command::Prune(args)) => prune::run(&args, context),
        Some(Command::Sign(args)) => sign::run(&args, context),
        Some(Command::Keys(KeysCommand::List(args))) => keys_list::run(args, context),
        Some(Command::Keys(KeysCommand::Rotate(args))) => keys_rotate::run(args, context),
        Some(Command::Keys(KeysCommand::Trust(args))) => keys_trust::run(&args, context),
        Some(Command::Keys(KeysCommand::Revoke(args))) => keys_revoke::run(&args, context),
        Some(Command::Keys(KeysCommand::Export(args))) => keys_export::run(&args, context),
        Some(Command::Export(args)) => export::run(&args, context),
        Some(Command::Import(args)) => import::run(&args, context),
        Some(Command::Reindex(args)) => reindex::run(&args, context),
        Some(Command::Repair(args)) => repair::run(&args, context),
        Some(Command::Help(args)) => help::run(&args, context),
        Some(Command::Completions(args)) => completions::run(&args, context),
        Some(Command::Man(args)) => man::run(&args, context),
    }
}
