//! Lines that begin with `/`: what a person does in a chat beside talking.

use selvedge_model::limits::Limits;

use crate::error::{Failure, Result};

/// A command typed in a chat.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Command {
    /// Leave.
    Quit,
    /// Say what can be typed.
    Help,
    /// Say which thread this is.
    Thread,
    /// Begin another conversation.
    New,
    /// Continue without a message: after an error, or with approvals that are pending.
    Resume,
    /// Raise limits and continue.
    Raise(Limits),
}

/// What `/help` says.
pub(crate) const HELP: &str = "\
Every line is a message; one that ends in a backslash continues on the next line.
  /resume             continue after an error, or decide about pending approvals
  /raise turns=50     raise a limit and continue: turns, tokens, spend (dollars), spawns, depth, duration (seconds)
  /new                begin another conversation
  /thread             show the id of this thread
  /quit               leave; so does Ctrl-D
To send a line that begins with /, begin it with a space.";

/// The command that a line is; nothing if it is a message.
pub(crate) fn parse(line: &str) -> Result<Option<Command>> {
    let Some(typed) = line.strip_prefix('/') else { return Ok(None) };
    let (word, rest) = typed.trim_end().split_once(char::is_whitespace).unwrap_or((typed.trim_end(), ""));
    let command = match (word, rest.trim()) {
        ("quit" | "exit", "") => Command::Quit,
        ("help", "") => Command::Help,
        ("thread", "") => Command::Thread,
        ("new", "") => Command::New,
        ("resume", "") => Command::Resume,
        ("raise", limits) => {
            let limits: Result<Vec<Limits>, String> = limits.split_whitespace().map(crate::limit::parse).collect();
            match limits {
                Ok(limits) if !limits.is_empty() => Command::Raise(crate::limit::all(&limits)),
                Ok(_) => return Err(Failure::usage("`/raise` needs a limit, such as `/raise turns=50`")),
                Err(why) => return Err(Failure::usage(format!("`/raise`: {why}"))),
            }
        }
        _ => {
            let message = format!("there is no command `/{word}` of this form; `/help` lists the commands");
            return Err(Failure::usage(message).hint("to send a line that begins with `/`, begin it with a space"));
        }
    };
    Ok(Some(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_message_a_command_or_refused() {
        assert_eq!(parse("hello /quit").unwrap(), None);
        assert_eq!(parse(" /etc is a folder").unwrap(), None);
        assert_eq!(parse("/quit ").unwrap(), Some(Command::Quit));
        let Some(Command::Raise(limits)) = parse("/raise turns=5 spend=0.5").unwrap() else { panic!() };
        assert_eq!((limits.turns, limits.spend.map(|spend| spend.to_string())), (Some(5), Some("0.50".to_owned())));
        for bad in ["/", "/qiut", "/quit now", "/raise", "/raise turns", "/raise turns=0"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
