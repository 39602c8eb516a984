//! `selvedge chat`: a conversation on one durable thread.
//!
//! In reading order: `session`: the thread, and what is done with it. `approval`: calls that need one. `command`: lines that begin with `/`.
//! `lines`: what is typed or piped in. `interrupts`: what Ctrl-C means. `active`: which conversation is continued.

mod active;
mod approval;
mod command;
mod interrupts;
mod lines;
mod session;

use selvedge::project::models::SCRIPTED;
use selvedge_model::{AgentId, Status, ThreadId};

use self::command::Command;
use self::interrupts::Interrupts;
use self::lines::{Lines, Typed};
use self::session::{Session, Turn};
use crate::context::Context;
use crate::error::{Failure, Result};
use crate::output::{BOLD, paint};
use crate::running::{Recording, Running};
use crate::text::clean;

/// Talk with an agent
///
/// Each line is a message; a line that ends in a backslash continues on the next line. The answer is streamed, tool calls and their results are
/// shown, and a call that needs an approval is asked about in place: `y`, `n`, or `n` and a reason. Everything is on one durable thread:
/// each step is signed and committed before it is shown as done.
///
/// The thread is remembered for each agent, so the same command continues the conversation; --new begins another. Without a remembered one
/// the newest conversation of the agent is continued.
///
/// Ctrl-C stops the answer and keeps the thread. At the prompt, Ctrl-D or /quit leaves, and so does Ctrl-C pressed twice. /help lists the
/// commands that can be typed there: they raise a limit, resume after an error, and begin another conversation.
///
/// In a pipe every line of stdin is a message and the answers go to stdout. If a call needs an approval, the next line answers it. The exit
/// code is that of the last message, as of `selvedge run`.
///
/// Without --model the agent's own model is used, else an offline model that repeats the message. With --model an existing conversation is
/// continued with that model for as long as the command runs.
///
/// JSON: as `selvedge run`, with one "ended" for each message; and {"type":"asking", "thread_id", "call_id", "tool", "arguments", "why"} for
/// a call that needs an approval, then, once it is decided, the object of `selvedge approve`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The agent; by default the only one of the project, or the one of your last chat in it
    agent: Option<AgentId>,
    /// The model
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// Begin another conversation
    #[arg(long)]
    new: bool,
    /// Continue this conversation, and remember it
    #[arg(long, value_name = "THREAD", conflicts_with = "new")]
    thread: Option<String>,
    #[command(flatten)]
    recording: Recording,
}

/// What a person types at.
const PROMPT: &str = "› ";

pub(crate) fn run(args: Args, context: &Context<'_>) -> Result<()> {
    let running = Running::open(context, &args.recording)?;
    let begun = begin(&args, &running);
    let talked = begun.and_then(|(agent, thread)| {
        let interrupts = Interrupts::listen(context.output.speaks_to_people())?;
        let session = Session::new(&running, context, &interrupts, agent, thread, args.model);
        talk(session, context, &interrupts)
    });
    running.finish(context);
    talked
}

/// The agent, and the thread that is continued if there is one.
fn begin(args: &Args, running: &Running) -> Result<(AgentId, Option<ThreadId>)> {
    if let Some(name) = &args.thread {
        let thread = super::wait::find(&*running.store, name)?;
        let manifest = running.store.get(&thread)?.manifest;
        return match &args.agent {
            Some(asked) if *asked != manifest.agent_id => {
                let message = format!("`{thread}` is a thread of agent `{}`, not of `{asked}`", manifest.agent_id);
                Err(Failure::usage(message).hint("leave the agent out"))
            }
            _ => Ok((manifest.agent_id, Some(thread))),
        };
    }
    let agent = match &args.agent {
        Some(agent) => agent.clone(),
        None => active::agent(&*running.store, &running.project.chat_agents()?)?,
    };
    let thread = if args.new { None } else { active::find(&*running.store, &agent)? };
    Ok((agent, thread))
}

fn talk(mut session: Session<'_>, context: &Context<'_>, interrupts: &Interrupts) -> Result<()> {
    let mut lines = Lines::new(context.output.is_json());
    session.check()?;
    greet(&session, context, &lines)?;
    // How the last message ended, in a pipe: the exit code of the command.
    let mut last = if lines.is_terminal() { session.take_up(&mut lines)? } else { Turn::Ended(Ok(())) };
    let mut is_leaving = false;
    while !matches!(last, Turn::Left) {
        let typed = lines.message(&paint(BOLD, PROMPT), interrupts)?;
        let text = match typed {
            Typed::End => break,
            Typed::Interrupted if is_leaving => break,
            Typed::Interrupted => {
                is_leaving = true;
                context.output.tell("\nPress Ctrl-C again or Ctrl-D to leave.");
                continue;
            }
            Typed::Text(text) if text.trim().is_empty() => continue,
            Typed::Text(text) => text,
        };
        is_leaving = false;
        if let Turn::Ended(Err(failure)) = &last
            && !lines.is_terminal()
        {
            context.output.error(failure);
        }
        last = match command::parse(&text) {
            Ok(None) => session.say(text, &mut lines)?,
            Ok(Some(Command::Quit)) => break,
            Ok(Some(command)) => session.obey(command, &mut lines)?,
            Err(failure) => {
                if !lines.is_terminal() {
                    return Err(failure);
                }
                context.output.tell(failure.message);
                Turn::Ended(Ok(()))
            }
        };
    }
    leave(&session, context, &lines);
    match last {
        Turn::Ended(outcome) if !lines.is_terminal() => outcome,
        _ => Ok(()),
    }
}

/// Says with whom and on which thread, to a person.
fn greet(session: &Session<'_>, context: &Context<'_>, lines: &Lines) -> Result<()> {
    if !lines.is_terminal() {
        return Ok(());
    }
    let agent = clean(session.agent().as_str());
    let model = clean(session.model()?.as_deref().unwrap_or(SCRIPTED));
    context.output.tell(match session.thread() {
        Some(thread) => format!("Chat with {agent} ({model}) on thread {thread}, continued."),
        None => format!("New chat with {agent} ({model})."),
    });
    context.output.tell("Ctrl-C stops an answer, Ctrl-D leaves, /help shows more.");
    if session.status()? == Some(Status::Running) {
        context.output.tell("Another process runs the thread now; your message will be queued.");
    }
    Ok(())
}

/// Prints how to continue, for a person.
fn leave(session: &Session<'_>, context: &Context<'_>, lines: &Lines) {
    if let (Some(thread), true) = (session.thread(), lines.is_terminal()) {
        let agent = session.agent();
        context.output.tell(format!(
            "\n`selvedge chat {agent}` continues {thread}; `selvedge transcript {thread}` shows what was said."
        ));
    }
}
