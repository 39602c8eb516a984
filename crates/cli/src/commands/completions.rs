//! `selvedge completions`: shell completions, including thread ids.
//!
//! The script calls this program for every completion, with `COMPLETE` in the environment, so the candidates are always current.
//! Completing never writes; without a store it offers no threads.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCandidates, ArgValueCompleter, CompletionCandidate};
use clap_complete::env::Shells;
use selvedge_store::{Filter, Summary};
use selvedge_store_local::Access;
use serde::Serialize;

use crate::args::{self, Global};
use crate::codes::Page;
use crate::commands::help::CODES;
use crate::context::Context;
use crate::error::{Failure, Result};
use crate::output::Output;
use crate::text::one_line;

/// The environment variable that requests candidates.
const VARIABLE: &str = "COMPLETE";
/// The name of every argument that takes a thread.
const THREAD: &str = "THREAD";
/// How many threads are offered.
const OFFERED: usize = 200;
/// How many threads that contain the typed text are searched for ids that begin with it.
const LOOKED_AT: usize = 10_000;
const TITLE_WIDTH: usize = 60;
const SHELLS: [&str; 5] = ["bash", "elvish", "fish", "powershell", "zsh"];

/// Generate shell completions for commands and thread ids
///
/// Load them when your shell starts, so that they always match the installed version:
///
///   bash        echo 'source <(selvedge completions bash)' >> ~/.bashrc
///   zsh         echo 'source <(selvedge completions zsh)' >> ~/.zshrc
///   fish        echo 'selvedge completions fish | source' > ~/.config/fish/completions/selvedge.fish
///   elvish      echo 'eval (selvedge completions elvish | slurp)' >> ~/.elvish/rc.elv
///   powershell  echo 'selvedge completions powershell | Out-String | Invoke-Expression' >> $PROFILE
///
/// Thread ids are those of the current project, or of -C and SELVEDGE_DIR; at most 200 are offered.
///
/// JSON: {"shell", "script"}
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// The shell
    #[arg(value_parser = PossibleValuesParser::new(SHELLS))]
    shell: String,
}

#[derive(Serialize)]
struct Script<'a> {
    shell: &'a str,
    script: String,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let script = script(&args.shell)?;
    if context.output.is_json() {
        context.output.record(&Script { shell: &args.shell, script })
    } else {
        context.output.bytes(script.as_bytes())
    }
}

fn script(shell: &str) -> Result<String> {
    let shells = Shells::builtins();
    let unknown = || Failure::usage(format!("completions for `{shell}` are not supported"));
    let completer = shells.completer(shell).ok_or_else(unknown)?;
    let mut script = Vec::new();
    completer
        .write_registration(VARIABLE, "selvedge", "selvedge", &program(), &mut script)
        .expect("writing to memory can't fail");
    Ok(String::from_utf8_lossy(&script).into_owned())
}

/// How this program was called: by its name, or by a path, which is made absolute.
fn program() -> String {
    let called = env::args_os().next().map_or_else(|| PathBuf::from("selvedge"), PathBuf::from);
    let is_path = called.components().count() > 1;
    let program = if is_path { std::path::absolute(&called).unwrap_or(called) } else { called };
    program.to_string_lossy().into_owned()
}

/// Answers a shell that requests candidates; returns whether one did.
pub(crate) fn answer() -> Result<bool> {
    let here = env::current_dir().ok();
    let answered = CompleteEnv::with_factory(args::command).var(VARIABLE).try_complete(env::args_os(), here.as_deref());
    answered.map_err(|error| {
        Failure::usage(error.to_string().trim().trim_start_matches("error: "))
            .hint(format!("{VARIABLE} is set by shells that request completions: unset it"))
    })
}

/// The command with the completers for threads and help pages.
pub(crate) fn with_candidates(command: Command) -> Command {
    let offer_threads = |arg: Arg| match arg.get_value_names() {
        Some([name]) if name == THREAD => arg.add(ArgValueCompleter::new(threads)),
        _ => arg,
    };
    let command = command.mut_args(offer_threads).mut_subcommands(with_candidates);
    match command.get_name() {
        "help" => command.mut_args(|arg| arg.add(ArgValueCandidates::new(pages))),
        _ => command,
    }
}

/// The commands and codes that have a help page.
fn pages() -> Vec<CompletionCandidate> {
    let candidate = |name: &str, help: String| CompletionCandidate::new(name.to_owned()).help(Some(help.into()));
    let root = args::command();
    let commands = root.get_subcommands().filter(|command| !command.is_hide_set());
    let commands = commands
        .map(|command| candidate(command.get_name(), command.get_about().map(ToString::to_string).unwrap_or_default()));
    let codes = Page::all().map(|page| candidate(page.code, page.summary().to_owned()));
    commands.chain([candidate(CODES, "Every error code".to_owned())]).chain(codes).collect()
}

/// The threads whose id begins with this, newest first; none if they can't be read.
fn threads(typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(typed) = typed.to_str() else { return Vec::new() };
    let found = look(typed).unwrap_or_default();
    let begins = |summary: &Summary| summary.manifest.thread_id.as_str().starts_with(typed);
    found.into_iter().filter(begins).take(OFFERED).map(candidate).collect()
}

fn look(typed: &str) -> Result<Vec<Summary>> {
    let folder = typed_folder(env::args_os()).or_else(|| env::var_os("SELVEDGE_DIR").map(PathBuf::from));
    let global = Global {
        json: false,
        folder,
        #[cfg(feature = "postgres")]
        store: std::env::var("SELVEDGE_STORE").ok(),
        no_color: true,
        quiet: true,
    };
    let output = Output::new(&global);
    let store = Context::new(&global, &output)?.open(Access::ReadOnly)?;
    let text = (!typed.is_empty()).then(|| typed.to_owned());
    let limit = if text.is_some() { LOOKED_AT } else { OFFERED };
    Ok(store.list(&Filter { text, ..Filter::default() }, None, limit)?.items)
}

fn candidate(Summary { manifest, .. }: Summary) -> CompletionCandidate {
    let title = manifest.title.map(|title| one_line(&title, TITLE_WIDTH).into());
    CompletionCandidate::new(manifest.thread_id.as_str()).help(title)
}

/// The folder of `-C` in the line that is being typed: a shell passes the words after `--`.
fn typed_folder(words: impl Iterator<Item = OsString>) -> Option<PathBuf> {
    let mut line = words.skip_while(|word| word != "--").skip(2).take_while(|word| word != "--");
    while let Some(word) = line.next() {
        let word = word.to_str()?.to_owned();
        match word.strip_prefix("-C") {
            Some("") => return line.next().map(|folder| at_home(&folder.to_string_lossy())),
            Some(folder) => return Some(at_home(folder)),
            None => {}
        }
    }
    None
}

/// A path with `~` expanded.
fn at_home(folder: &str) -> PathBuf {
    match (folder.strip_prefix("~/"), env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(folder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_read_from_the_typed_line() {
        let folder = |line: &str| typed_folder(line.split(' ').map(OsString::from));
        assert_eq!(folder("selvedge -- selvedge -C /tea log "), Some(PathBuf::from("/tea")));
        assert_eq!(folder("selvedge -- selvedge log -C/tea "), Some(PathBuf::from("/tea")));
        assert_eq!(folder("selvedge -C /tea -- selvedge log "), None);
        assert_eq!(folder("selvedge -- selvedge log -- -C /tea"), None);
    }

    #[test]
    fn every_argument_that_takes_a_thread_offers_threads() {
        fn check(command: &Command, found: &mut usize) {
            for arg in command.get_arguments() {
                let is_every = arg.get_id() == "all" && arg.get_action().takes_values();
                let named = ["thread", "threads", "parent"].contains(&arg.get_id().as_str()) || is_every;
                assert_eq!(arg.get::<ArgValueCompleter>().is_some(), named, "{} {}", command.get_name(), arg.get_id());
                *found += usize::from(named);
            }
            for below in command.get_subcommands() {
                check(below, found);
            }
        }
        let mut found = 0;
        check(&args::command(), &mut found);
        assert!(found >= 10, "{found}");
    }
}
