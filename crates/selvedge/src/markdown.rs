//! Foreign text in Markdown: what a model, a tool or a user wrote can't leave its block.
//!
//! - Prose stands in a block quote, every line of it with its `>`; HTML in it is text, and images in it are links, so that a reader loads
//!   nothing.
//! - Text of machines stands in a fence that is longer than any run of backticks in it.
//! - In a line of ours, words are escaped and names are code.

use selvedge_model::shell::drives_the_screen;

/// Foreign prose as a block quote.
pub fn quoted(text: &str) -> String {
    let text = harmless(text);
    let lines = text.trim_end_matches('\n').split('\n');
    let quoted: Vec<String> = lines.map(|line| format!("> {line}").trim_end().to_owned()).collect();
    quoted.join("\n")
}

/// Text of a machine in a fence.
pub fn fenced(language: &str, text: &str) -> String {
    let text = safe(text);
    let fence = "`".repeat((longest_run(&text) + 1).max(3));
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{fence}{language}\n{text}{end}{fence}")
}

/// Words on one line, as they are.
pub fn words(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in one_line(text).chars() {
        if "\\`*_[]<>&#~|!".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// A name on one line, as code.
pub fn name(text: &str) -> String {
    let text = one_line(text);
    let mark = "`".repeat(longest_run(&text) + 1);
    let apart = if text.is_empty() || text.starts_with('`') || text.ends_with('`') { " " } else { "" };
    format!("{mark}{apart}{text}{apart}{mark}")
}

/// Untrusted text, made safe to show: nothing in it can move the cursor, change colours or reorder the line.
pub fn clean(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => safe.push('\n'),
            c if c.is_control() => safe.extend(c.escape_default()),
            c if drives_the_screen(c) => safe.extend(c.escape_unicode()),
            c => safe.push(c),
        }
    }
    safe
}

/// Foreign text, without what drives a terminal: a Markdown file may be read on one. Lines end in the one way that Markdown can't take for
/// anything else.
fn safe(text: &str) -> String {
    let lines = text.replace("\r\n", "\n");
    let tabs: Vec<String> = lines.split('\t').map(clean).collect();
    tabs.join("\t")
}

/// Foreign prose in which HTML is text and images are links.
fn harmless(text: &str) -> String {
    let text = safe(text).replace("![", "!\\[");
    let mut harmless = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        let opens = characters.peek().is_some_and(|next| next.is_ascii_alphabetic() || "/!?".contains(*next));
        if c == '<' && opens { harmless.push_str("&lt;") } else { harmless.push(c) }
    }
    harmless
}

/// The same text on one line; spaces at its ends stay, so that pieces can be joined.
fn one_line(text: &str) -> String {
    clean(&text.replace(['\n', '\r', '\t'], " "))
}

/// How many backticks follow each other at most.
fn longest_run(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or(0)
}
