//! The command line.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::FalseyValueParser;
use clap::error::ErrorKind;
use clap::{ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands::{
    agent_list, agent_new, append, backup, budget, chain, completions, config_check, config_explain, config_get,
    config_list, decide, demo, directive_check, directive_list, doctor, erase, export, heads, help, import, inbox,
    init, keys_export, keys_list, keys_revoke, keys_rotate, keys_trust, log, man, model_check, model_list, model_show,
    prune, reindex, repair, replay, restore, resume, run, search, send, sign, snapshots, state, stop, thread_delete,
    thread_find, thread_list, thread_new, thread_rename, thread_show, tool_list, tree, usage, verify, wait,
};
use crate::commands::{blob, chat, directive_new, hooks_list, hooks_test, sandbox_check, tool_new, transcript};
use crate::commands::{graph_check, graph_list, graph_new, graph_run, graph_show};
use crate::commands::{knowledge_check, knowledge_new, knowledge_search, knowledge_show, knowledge_sign};
use crate::commands::{mcp_add, mcp_approve, mcp_check, mcp_list};
use crate::commands::{serve, token_list, token_new, token_revoke};
use crate::commands::{store_copy, store_status};
use crate::error::{Exit, Failure};
use crate::examples::with_examples;
use crate::output::Output;
use crate::running::unsecret;

const LONG_ABOUT: &str = "\
Run AI agents as durable threads on signed logs.

Every change of a thread is signed and durable before it is reported. Everything works offline; `selvedge demo` \
shows it in a few seconds.

THREAD is any unique prefix of a thread's id, or of its hex suffix; `@` is the newest thread, `@2` the one before it. Data goes to stdout, everything else to \
stderr. With --json every command writes JSON, one object per line, and an error is one object on stderr: \
{\"error\":{\"code\",\"message\",\"hint\",\"retryable\"}}. `selvedge help CODE` explains a code. \
A notice is one object on stderr too, {\"notice\":{\"message\"}}, before the error if there is one.

Exit codes: 0 ok, 1 failed, 2 usage, 3 not found or ambiguous, 4 not allowed, 5 conflict (another writer was first), 6 integrity, \
7 needs a decision, 8 limit or budget, 130 interrupted.

Environment: SELVEDGE_DIR (as -C), SELVEDGE_HOME (your Selvedge home, with keys and configuration; default: selvedge below \
XDG_CONFIG_HOME or ~/.config), SELVEDGE_JSON (as --json), SELVEDGE_STORE (as --store), PGPASSWORD (the password of that store), NO_COLOR.";

/// Run AI agents as durable threads on signed logs.
#[derive(Debug, Parser)]
#[command(name = "selvedge", version, long_about = LONG_ABOUT, max_term_width = 110, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// The options of every command.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Write JSON, one object per line
    #[arg(long, global = true, env = "SELVEDGE_JSON", hide_env = true, value_parser = FalseyValueParser::new())]
    pub(crate) json: bool,
    /// Run as if started in DIR
    #[arg(short = 'C', value_name = "DIR", global = true, env = "SELVEDGE_DIR", hide_env = true)]
    pub(crate) folder: Option<PathBuf>,
    /// Keep threads on PostgreSQL, at postgres://USER@HOST/DATABASE
    #[cfg(feature = "postgres")]
    #[arg(
        long,
        value_name = "ADDRESS",
        global = true,
        env = "SELVEDGE_STORE",
        hide_env = true,
        hide_env_values = true
    )]
    pub(crate) store: Option<String>,
    /// Disable colours; NO_COLOR does the same
    #[arg(long, global = true)]
    pub(crate) no_color: bool,
    /// Print only data and errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(demo::Args),
    Init(init::Args),
    /// Create, find, rename and delete threads
    #[command(subcommand)]
    Thread(ThreadCommand),
    Run(run::Args),
    Chat(chat::Args),
    Send(send::Args),
    Resume(resume::Args),
    /// Cancel a thread
    ///
    /// Its run stops at the next point where no work is lost. A thread that is suspended, or never ran, ends at once; one that has ended does
    /// not change.
    ///
    /// JSON: {"thread_id", "status", "pid"}: the status when this returned; a thread that runs in another process stops soon after. "pid" is
    /// that process, or null.
    Cancel(stop::Args),
    /// Kill a thread
    ///
    /// Its calls are stopped at once, and their outcomes may be unknown. Use `cancel` to let them finish.
    ///
    /// JSON: as `selvedge cancel`.
    Kill(stop::Args),
    Settle(decide::Settle),
    Approve(decide::Approve),
    Deny(decide::Deny),
    Inbox(inbox::Args),
    Wait(wait::Args),
    Chain(chain::Args),
    Tree(tree::Args),
    Budget(budget::Args),
    Usage(usage::Args),
    /// Create and list agents
    #[command(subcommand)]
    Agent(AgentCommand),
    /// Create, list and check directives
    #[command(subcommand)]
    Directive(DirectiveCommand),
    /// Create, check and run graphs: pipelines that stop anywhere and continue
    #[command(subcommand)]
    Graph(GraphCommand),
    /// Create and list tools
    #[command(subcommand)]
    Tool(ToolCommand),
    /// Declare, list, check and approve MCP servers
    #[command(subcommand)]
    Mcp(McpCommand),
    /// Show what sandboxes enforce here
    #[command(subcommand)]
    Sandbox(SandboxCommand),
    /// List and test hooks
    #[command(subcommand)]
    Hooks(HooksCommand),
    /// Search, show, create, sign and check knowledge
    #[command(subcommand)]
    Knowledge(KnowledgeCommand),
    /// List, show and check models
    #[command(subcommand)]
    Model(ModelCommand),
    /// Show, explain and check the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    Serve(serve::Args),
    /// Create, list and revoke tokens of the server
    #[command(subcommand)]
    Token(TokenCommand),
    Append(append::Args),
    Search(search::Args),
    Transcript(transcript::Args),
    Log(log::Args),
    Blob(blob::Args),
    State(state::Args),
    Snapshots(snapshots::Args),
    Verify(verify::Args),
    Replay(replay::Args),
    Doctor(doctor::Args),
    Backup(backup::Args),
    Restore(restore::Args),
    /// Export the ends of all logs, and detect a rollback
    #[command(subcommand)]
    Heads(HeadsCommand),
    /// Copy a store to another one, and show who works on it
    #[command(subcommand)]
    Store(StoreCommand),
    Erase(erase::Args),
    Prune(prune::Args),
    Sign(sign::Args),
    /// List, rotate, trust, revoke and export keys
    #[command(subcommand)]
    Keys(KeysCommand),
    Export(export::Args),
    Import(import::Args),
    Reindex(reindex::Args),
    Repair(repair::Args),
    Help(help::Args),
    Completions(completions::Args),
    Man(man::Args),
}

/// The commands on threads.
#[derive(Debug, Subcommand)]
pub(crate) enum ThreadCommand {
    New(thread_new::Args),
    List(thread_list::Args),
    Show(thread_show::Args),
    Find(thread_find::Args),
    Rename(thread_rename::Args),
    Delete(thread_delete::Args),
}

/// The commands on agents.
#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    New(agent_new::Args),
    List(agent_list::Args),
}

/// The commands on directives.
#[derive(Debug, Subcommand)]
pub(crate) enum DirectiveCommand {
    New(directive_new::Args),
    List(directive_list::Args),
    Check(directive_check::Args),
}

/// The commands on graphs.
#[derive(Debug, Subcommand)]
pub(crate) enum GraphCommand {
    New(graph_new::Args),
    List(graph_list::Args),
    Check(graph_check::Args),
    Show(graph_show::Args),
    Run(graph_run::Args),
}

/// The commands on tools.
#[derive(Debug, Subcommand)]
pub(crate) enum ToolCommand {
    New(tool_new::Args),
    List(tool_list::Args),
}

/// The commands on MCP servers.
#[derive(Debug, Subcommand)]
pub(crate) enum McpCommand {
    Add(mcp_add::Args),
    List(mcp_list::Args),
    Check(mcp_check::Args),
    Approve(mcp_approve::Args),
}

/// The commands on sandboxes.
#[derive(Debug, Subcommand)]
pub(crate) enum SandboxCommand {
    Check(sandbox_check::Args),
}

/// The commands on hooks.
#[derive(Debug, Subcommand)]
pub(crate) enum HooksCommand {
    List(hooks_list::Args),
    Test(hooks_test::Args),
}

/// The commands on knowledge.
#[derive(Debug, Subcommand)]
pub(crate) enum KnowledgeCommand {
    Search(knowledge_search::Args),
    Show(knowledge_show::Args),
    New(knowledge_new::Args),
    Sign(knowledge_sign::Args),
    Check(knowledge_check::Args),
}

/// The commands on models.
#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    List(model_list::Args),
    Show(model_show::Args),
    Check(model_check::Args),
}

/// The commands on the configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    List(config_list::Args),
    Get(config_get::Args),
    Explain(config_explain::Args),
    Check(config_check::Args),
}

/// The commands on tokens.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    New(token_new::Args),
    List(token_list::Args),
    Revoke(token_revoke::Args),
}

/// The commands on heads.
#[derive(Debug, Subcommand)]
pub(crate) enum HeadsCommand {
    Export(heads::Export),
    Verify(heads::Verify),
}

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    Copy(store_copy::Args),
    Status(store_status::Args),
}

/// The commands on keys.
#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    List(keys_list::Args),
    Rotate(keys_rotate::Args),
    Trust(keys_trust::Args),
    Revoke(keys_revoke::Args),
    Export(keys_export::Args),
}

/// The whole command line, with examples and completions.
pub(crate) fn command() -> clap::Command {
    with_examples(completions::with_candidates(Cli::command()))
}

/// Parses the command line; an error has been reported when this returns.
pub(crate) fn parse() -> Result<Cli, ExitCode> {
    let mut command = command();
    if is_typed("--no-color") {
        command = command.color(ColorChoice::Never);
    }
    command.try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches)).map_err(|error| report(&error))
}

fn report(error: &clap::Error) -> ExitCode {
    let is_answer = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if !is_answer && wants_json() {
        return refuse(&failure(error));
    }
    // There is nowhere to report a failing stderr to. A mistyped argument may be a secret, and is not repeated.
    let _ = if is_answer {
        error.print()
    } else {
        write!(anstream::stderr().lock(), "{}", unsecret(&error.render().ansi().to_string()))
    };
    if is_answer { ExitCode::SUCCESS } else { Exit::Usage.into() }
}

/// Reports a failure that occurs before the command line is parsed.
pub(crate) fn refuse(failure: &Failure) -> ExitCode {
    let global = Global {
        json: wants_json(),
        folder: None,
        #[cfg(feature = "postgres")]
        store: None,
        no_color: is_typed("--no-color"),
        quiet: false,
    };
    Output::new(&global).error(failure);
    failure.exit.into()
}

/// The error message of clap, on one line.
fn failure(error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    let text = text.split("\n\nUsage:").next().unwrap_or_default().split("\n\nFor more").next().unwrap_or_default();
    let message = text.trim_start_matches("error: ").split_whitespace().collect::<Vec<_>>().join(" ");
    Failure::usage(message).hint("`selvedge help` lists the commands and options")
}

fn wants_json() -> bool {
    let asked = std::env::var("SELVEDGE_JSON").ok();
    let is_on = |value: String| !matches!(value.to_lowercase().as_str(), "" | "0" | "n" | "no" | "f" | "false" | "off");
    asked.is_some_and(is_on) || is_typed("--json")
}

/// Whether a flag is on the command line, before it is parsed.
fn is_typed(flag: &str) -> bool {
    std::env::args_os().skip(1).take_while(|word| word != OsStr::new("--")).any(|word| word == OsStr::new(flag))
}
