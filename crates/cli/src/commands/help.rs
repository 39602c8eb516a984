//! `selvedge help`: the help of a command, or the page of an error code.

use anstyle::Style;
use clap::Command;
use clap::builder::StyledStr;
use serde::Serialize;

use crate::args;
use crate::codes::Page;
use crate::context::Context;
use crate::error::{Failure, Result};
use crate::output::{BOLD, DIM, Output, paint, table};

/// The argument that lists all codes.
pub(crate) const CODES: &str = "codes";

/// Show the help of a command, or explain an error code
///
/// Every error has a code that never changes. It is shown below the message and in the JSON. Its page says what it means, what
/// usually causes it, what to do, and whether a retry helps. `selvedge help codes` lists all codes.
///
/// JSON: of a code, and for `codes` of each, {"code", "exit_codes":[…], "retry":"never"|"perhaps"|"helps", "meaning", "cause",
/// "remedies":[…], "related":[…]}; of a command {"command", "text", "commands":[…]}; of `usage`, which is both, all of these.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A command, an error code, or `codes`
    #[arg(value_name = "COMMAND|CODE")]
    words: Vec<String>,
}

#[derive(Serialize)]
struct Help<'a> {
    command: String,
    text: String,
    commands: Vec<&'a str>,
    /// The error code of the same name.
    #[serde(flatten)]
    code: Option<&'a Page>,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let mut root = args::command();
    root.build();
    let mut of_code = None;
    if let [word] = args.words.as_slice() {
        if word == CODES {
            return list(context.output);
        }
        of_code = Page::find(word);
        if let Some(page) = of_code.filter(|_| root.find_subcommand(word).is_none()) {
            return show(page, context.output);
        }
    }
    let command = find(&mut root, &args.words)?;
    let text = page(&args.words).unwrap_or_else(|| command.render_long_help());
    if !context.output.is_json() {
        context.output.text(text.ansi().to_string().trim_end())?;
        return of_code.map_or(Ok(()), |page| {
            context.output.text(format!("\n{}", paint(BOLD, "The error code of this name:")))?;
            show(page, context.output)
        });
    }
    let commands = shown(command).map(Command::get_name).collect();
    let help = Help { command: args.words.join(" "), text: text.to_string(), commands, code: of_code };
    context.output.record(&help)
}

/// The text of the command's own `--help`: only clap knows when that is the short form.
fn page(words: &[String]) -> Option<StyledStr> {
    let line = ["selvedge"].into_iter().chain(words.iter().map(String::as_str)).chain(["--help"]);
    args::command().try_get_matches_from(line).err().map(|page| page.render())
}

/// The command that these words name, in a built tree.
pub(crate) fn find<'a>(root: &'a mut Command, words: &[String]) -> Result<&'a mut Command> {
    let mut command = root;
    for (depth, word) in words.iter().enumerate() {
        if command.find_subcommand(word).is_none() {
            return Err(unknown(command, &words[..depth], word));
        }
        command = command.find_subcommand_mut(word).expect("found on the line above");
    }
    Ok(command)
}

/// The visible subcommands of a command.
pub(crate) fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|below| !below.is_hide_set())
}

fn unknown(command: &Command, above: &[String], word: &str) -> Failure {
    let commands = shown(command).map(|below| below.get_name());
    let failure = match above {
        [] => Failure::usage(format!("there is no command and no error code `{word}`")),
        above => Failure::usage(format!("there is no command `{} {word}`", above.join(" "))),
    };
    let codes = Page::all().map(|page| page.code).chain([CODES]).filter(|_| above.is_empty());
    let Some(nearest) = nearest(word, commands.chain(codes)) else {
        return failure.hint("`selvedge help` lists the commands, `selvedge help codes` the error codes");
    };
    let words: Vec<&str> = above.iter().map(String::as_str).chain([nearest]).collect();
    failure.hint(format!("did you mean `selvedge help {}`?", words.join(" ")))
}

/// The most similar known word, if it is similar enough.
fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase().replace('-', "_");
    let far = (word.chars().count() / 3).max(1);
    let near = known.map(|known| (distance(&word, &known.replace('-', "_")), known));
    near.filter(|(distance, _)| *distance <= far).min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
}

/// The edit distance of two words: letters added, removed or changed.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, known) in other.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *known);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

fn list(output: &Output) -> Result<()> {
    if output.is_json() {
        return Page::all().try_for_each(|page| output.record(page));
    }
    let exits = |page: &Page| page.exits.iter().map(|exit| (*exit as u8).to_string()).collect::<Vec<_>>().join(",");
    let rows = Page::all().map(|page| vec![page.code.to_owned(), exits(page), page.summary().to_owned()]);
    output.text(table(&["CODE", "EXIT", "MEANING"], &[], rows))
}

fn show(page: &Page, output: &Output) -> Result<()> {
    if output.is_json() {
        return output.record(page);
    }
    let exits: Vec<String> = page.exits.iter().map(|exit| format!("{} ({})", *exit as u8, exit.word())).collect();
    let row = |style: Style, name: &str, text: &str| format!("{} {text}", paint(style, format_args!("{name:<11}")));
    let mut lines = vec![paint(BOLD, page.code), page.meaning.to_owned(), String::new()];
    let exits = if exits.is_empty() { "none: for information only".to_owned() } else { exits.join(", ") };
    lines.push(row(DIM, "exit code", &exits));
    lines.push(row(DIM, "retry", &page.retry.to_string()));
    lines.push(row(DIM, "cause", page.cause));
    for (index, remedy) in page.remedies.iter().enumerate() {
        lines.push(row(DIM, if index == 0 { "what to do" } else { "" }, &format!("- {remedy}")));
    }
    lines.push(row(DIM, "related", &page.related.join(", ")));
    output.text(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_similar_word_is_suggested_and_a_different_one_is_not() {
        let known = || ["version_conflict", "verify", "thread"].into_iter();
        assert_eq!(nearest("version-conflit", known()), Some("version_conflict"));
        assert_eq!(nearest("verfy", known()), Some("verify"));
        assert_eq!(nearest("spaghetti", known()), None);
        assert_eq!((distance("tea", "tea"), distance("tea", "team"), distance("", "tea")), (0, 1, 3));
    }

    #[test]
    fn only_usage_is_the_name_of_a_command_and_of_a_code() {
        let root = args::command();
        let called = |name: &str| root.find_subcommand(name).is_some();
        let both: Vec<&str> = Page::all().map(|page| page.code).filter(|code| called(code)).collect();
        assert_eq!((called(CODES), both.as_slice()), (false, ["usage"].as_slice()), "help of it shows both");
    }
}
