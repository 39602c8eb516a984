//! Splits a directive into its metadata and its body.

use crate::error::Flaw;

/// The text of the metadata, and its first line.
#[derive(Debug)]
pub(super) enum Metadata<'a> {
    Xml { text: &'a str, line: u64 },
    Yaml { text: &'a str, line: u64 },
}

#[derive(Debug)]
pub(super) struct Split<'a> {
    pub(super) metadata: Metadata<'a>,
    pub(super) body: &'a str,
    pub(super) body_line: u64,
}

/// One line and its position.
struct Line<'a> {
    text: &'a str,
    start: usize,
    end: usize,
    number: u64,
}

pub(super) fn split(text: &str, first_line: u64) -> Result<Split<'_>, Flaw> {
    let mut offset = 0;
    let lines = text.split_inclusive('\n').zip(first_line..).map(|(line, number)| {
        let start = offset;
        offset += line.len();
        Line { text: line.trim_end(), start, end: offset, number }
    });
    if text.starts_with("---\n") || text.starts_with("---\r\n") {
        front_matter(text, lines)
    } else {
        fence(text, lines, first_line)
    }
}

fn front_matter<'a>(text: &'a str, mut lines: impl Iterator<Item = Line<'a>>) -> Result<Split<'a>, Flaw> {
    let Some(open) = lines.next() else { return Err(missing()) };
    let Some(close) = lines.find(|line| line.text == "---") else {
        let flaw = Flaw::new("the metadata is not closed").on_line(open.number);
        return Err(flaw.hint("end it with a line that is `---`"));
    };
    let metadata = Metadata::Yaml { text: &text[open.end..close.start], line: open.number + 1 };
    Ok(with_body(metadata, &text[close.end..], close.number + 1))
}

/// The first block of three backticks with `xml` that contains a directive; the content of a longer block is an example.
fn fence<'a>(text: &'a str, lines: impl Iterator<Item = Line<'a>>, first_line: u64) -> Result<Split<'a>, Flaw> {
    let mut open: Option<(Line<'a>, usize)> = None;
    for line in lines {
        let ticks = line.text.bytes().take_while(|byte| *byte == b'`').count();
        let Some((opening, length)) = &open else {
            if ticks >= 3 {
                open = Some((line, ticks));
            }
            continue;
        };
        if ticks < *length || line.text.len() > ticks {
            continue;
        }
        let content = &text[opening.end..line.start];
        // In a longer row of backticks, another backtick follows the third.
        let is_xml = opening.text[3..].trim() == "xml";
        if is_xml && content.contains("<directive") {
            let metadata = Metadata::Xml { text: content, line: opening.number + 1 };
            return Ok(with_body(metadata, &text[line.end..], line.number + 1));
        }
        open = None;
    }
    match open.filter(|(_, length)| *length == 3) {
        Some((opening, _)) => {
            let flaw = Flaw::new("a block is opened and never closed").on_line(opening.number);
            Err(flaw.hint("end it with a line of three backticks"))
        }
        None => Err(missing().on_line(first_line)),
    }
}

fn missing() -> Flaw {
    Flaw::new("it has no metadata").hint(
        "begin with `---`, `name: …`, `---`, or with a block of three backticks and `xml` that contains `<directive name=\"…\">`",
    )
}

/// Empty lines around the body are not part of it.
fn with_body<'a>(metadata: Metadata<'a>, rest: &'a str, line: u64) -> Split<'a> {
    let blank = rest.len() - rest.trim_start().len();
    let start = rest[..blank].rfind('\n').map_or(0, |end| end + 1);
    let skipped = rest[..start].bytes().filter(|byte| *byte == b'\n').count() as u64;
    Split { metadata, body: rest[start..].trim_end(), body_line: line + skipped }
}
