//! `file_grep`: the lines of files that match a regular expression.

use std::fs::File;
use std::io::{BufRead as _, BufReader};

use regex::Regex;
use rustix::fd::OwnedFd;
use selvedge_model::event::EffectClass;
use selvedge_model::tool::{Reconciled, Risk, Started};
use selvedge_model::{Call, Cancel, Output, Tool, ToolError, ToolSpec};
use serde_json::{Value, json};

use super::lines::{Line, next_line};
use super::path::{CheckedPath, Folders, Missing, Refused};
use super::pattern;
use super::read::open_file;
use super::walk::{Next, Walked, walk};
use crate::error::InvalidTool;
use crate::in_process::{self, InProcessCall};
use crate::schema::Schema;

/// The most lines that are returned.
const MATCHES_MAX: usize = 200;
/// The most characters of a line that are returned.
const LINE_CHARS_MAX: usize = 300;
/// The most bytes of one line that are searched, and of one file.
const LINE_BYTES_MAX: usize = 64 * 1024;
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The tool. It changes nothing and follows no links.
#[derive(Debug)]
pub struct FileGrep {
    folders: Folders,
    spec: ToolSpec,
    schema: Schema,
}

/// What is searched for.
struct Wanted {
    expression: Regex,
    /// Only files whose paths match.
    files: Option<Regex>,
}

/// What was found.
#[derive(Default)]
struct Found {
    matches: Vec<Value>,
    /// Files that are too large or no text.
    skipped: usize,
    is_full: bool,
}

impl FileGrep {
    /// Searches inside `folders`.
    pub fn new(folders: Folders) -> Result<Self, InvalidTool> {
        let schema = json!({
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "minLength": 1, "description": "A regular expression that a line must match."},
                "path": {"type": "string", "description": "The file or folder to search, relative to the project; `.` if it is left out."},
                "files": {"type": "string", "description": "Only files whose paths match this pattern, such as `*.rs`."},
                "ignore_case": {"type": "boolean"}
            },
            "required": ["pattern"],
            "additionalProperties": false
        });
        let description = "Finds lines in the text files of the project.";
        let spec = in_process::spec("file_grep", description, schema, EffectClass::Pure, Risk::Safe);
        Ok(Self { schema: Schema::compile(&spec.name, &spec.input_schema)?, folders, spec })
    }
}

impl Tool for FileGrep {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn start(&self, call: &Call) -> Result<Box<dyn Started>, ToolError> {
        self.schema.check(&self.spec.name, &call.arguments)?;
        let not_started = |why| ToolError::NotStarted { tool: self.spec.name.clone(), why };
        let text = |name: &str| call.arguments[name].as_str();
        let place = self.folders.place(text("path").unwrap_or(".")).map_err(not_started)?;
        let ignore_case = call.arguments["ignore_case"].as_bool().unwrap_or_default();
        let expression = pattern::expression_of(text("pattern").unwrap_or_default(), ignore_case);
        let expression =
            expression.map_err(|why| not_started(format!("`pattern` is not a regular expression: {why}")))?;
        let files = text("files").map(pattern::paths).transpose().map_err(not_started)?;
        let folders = self.folders.clone();
        let wanted = Wanted { expression, files };
        let work = move |cancel: &Cancel| search(&folders, &place, &wanted, cancel).unwrap_or_else(Output::error);
        Ok(InProcessCall::stoppable(&self.spec.name, work))
    }

    /// It has no effect, so it can be made again.
    fn reconcile(&self, _call: &Call, _cancel: &Cancel) -> Reconciled {
        Reconciled::NotDone
    }
}

fn search(folders: &Folders, place: &CheckedPath, wanted: &Wanted, cancel: &Cancel) -> Result<Output, Refused> {
    let mut found = Found::default();
    let walked = match folders.open_folder(place) {
        Ok(folder) => walk(folder, cancel, &mut |path, folder, name| {
            if wanted.files.as_ref().is_none_or(|files| files.is_match(path)) {
                found.add(folder, name, &place.joined(path), wanted, cancel);
            }
            if found.is_full { Next::Stop } else { Next::Continue }
        })?,
        Err(why) => {
            let Ok((folder, name)) = folders.open_parent(place, Missing::IsRefused) else { return Err(why) };
            open_file(&folder, name, &place.shown())?;
            found.add(&folder, name, &place.shown(), wanted, cancel);
            Walked::All
        }
    };
    let complete = walked == Walked::All && !found.is_full && cancel.said().is_none();
    let content = json!({"matches": found.matches, "skipped_files": found.skipped, "complete": complete});
    Ok(Output { content, ..Output::default() })
}

impl Found {
    /// Searches a file. One that is gone by now, or can't be read, counts as skipped.
    fn add(&mut self, folder: &OwnedFd, name: &str, path: &str, wanted: &Wanted, cancel: &Cancel) {
        let Ok(file) = open_file(folder, name, path) else {
            self.skipped += 1;
            return;
        };
        if file.metadata().is_ok_and(|about| about.len() > FILE_BYTES_MAX) || !is_text(&file) {
            self.skipped += 1;
            return;
        }
        let mut reader = BufReader::new(&file);
        let mut number = 0_u64;
        while let Ok(Some(Line { text, .. })) = next_line(&mut reader, LINE_BYTES_MAX) {
            number += 1;
            if cancel.said().is_some() {
                return;
            }
            let text = String::from_utf8_lossy(&text);
            let text = text.trim_end_matches(['\n', '\r']);
            if !wanted.expression.is_match(text) {
                continue;
            }
            if self.matches.len() == MATCHES_MAX {
                self.is_full = true;
                return;
            }
            let shown: String = text.chars().take(LINE_CHARS_MAX).collect();
            self.matches.push(json!({"path": path, "line": number, "text": shown}));
        }
    }
}

/// Whether a file looks like text: no NUL in its beginning.
fn is_text(file: &File) -> bool {
    use std::io::{Seek as _, SeekFrom};
    let mut reader = BufReader::new(file);
    let is_text = reader.fill_buf().is_ok_and(|head| !head.contains(&0));
    let mut file = file;
    is_text && file.seek(SeekFrom::Start(0)).is_ok()
}
