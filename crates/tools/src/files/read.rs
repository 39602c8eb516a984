//! `file_read`: the text of a file, in parts if it is long.

use std::fs::File;
use std::io::{BufReader, Read as _, Seek as _, SeekFrom};

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, openat};
use selvedge_model::event::EffectClass;
use selvedge_model::tool::{Reconciled, Risk, Started};
use selvedge_model::{Call, Cancel, Output, Tool, ToolError, ToolSpec};
use serde_json::json;

use super::lines::next_line;
use super::path::{CheckedPath, Folders, Missing, Refused, why_not};
use crate::error::InvalidTool;
use crate::in_process::{self, InProcessCall};
use crate::schema::Schema;

/// The most bytes of a file that are returned at once.
const READ_BYTES_MAX: u64 = 256 * 1024;

/// The part of a file that is asked for.
#[derive(Clone, Copy)]
enum Part {
    Bytes { offset: u64 },
    Lines { first: u64, count: u64 },
}

/// The tool. It has no effect, and needs memory for one part only.
#[derive(Debug)]
pub struct FileRead {
    folders: Folders,
    spec: ToolSpec,
    schema: Schema,
}

impl FileRead {
    /// Reads inside `folders`.
    pub fn new(folders: Folders) -> Result<Self, InvalidTool> {
        let schema = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "The file, relative to the project."},
                "offset": {"type": "integer", "minimum": 0, "description": "The byte to begin at."},
                "line": {"type": "integer", "minimum": 1, "description": "The line to begin at, instead of a byte; the first one is 1."},
                "lines": {"type": "integer", "minimum": 1, "description": "How many lines to read."}
            },
            "required": ["path"],
            "additionalProperties": false
        });
        let description = "Reads a text file of the project. A long file is read in parts.";
        let spec = in_process::spec("file_read", description, schema, EffectClass::Pure, Risk::Safe);
        Ok(Self { schema: Schema::compile(&spec.name, &spec.input_schema)?, folders, spec })
    }
}

impl Tool for FileRead {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn start(&self, call: &Call) -> Result<Box<dyn Started>, ToolError> {
        self.schema.check(&self.spec.name, &call.arguments)?;
        let place = self.folders.place(call.arguments["path"].as_str().unwrap_or_default());
        let place = place.map_err(|why| ToolError::NotStarted { tool: self.spec.name.clone(), why })?;
        let number = |name: &str| call.arguments[name].as_u64();
        let part = match (number("offset"), number("line"), number("lines")) {
            (Some(offset), None, None) => Part::Bytes { offset },
            (None, None, None) => Part::Bytes { offset: 0 },
            (None, first, count) => Part::Lines { first: first.unwrap_or(1), count: count.unwrap_or(u64::MAX) },
            (Some(_), ..) => {
                let why = "`offset` counts bytes and can't be given together with `line` or `lines`".to_owned();
                return Err(ToolError::NotStarted { tool: self.spec.name.clone(), why });
            }
        };
        let folders = self.folders.clone();
        Ok(InProcessCall::boxed(&self.spec.name, move || read(&folders, &place, part).unwrap_or_else(Output::error)))
    }

    /// It has no effect, so it can be made again.
    fn reconcile(&self, _call: &Call, _cancel: &Cancel) -> Reconciled {
        Reconciled::NotDone
    }
}

/// Opens a file, but no link, pipe or device.
pub(super) fn open_file(folder: &OwnedFd, name: &str, path: &str) -> Result<File, Refused> {
    // Without NONBLOCK, opening a named pipe would wait for its writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = openat(folder, name, flags, Mode::empty());
    let file = File::from(opened.map_err(|errno| why_not(folder, name, path, errno))?);
    match file.metadata() {
        Ok(about) if about.is_file() => Ok(file),
        Ok(_) => Err(format!("`{path}` is not a file")),
        Err(error) => Err(format!("`{path}` can't be read: {error}")),
    }
}

/// Some lines of a file.
fn lines(file: &File, path: &str, first: u64, count: u64) -> Result<Output, Refused> {
    let failed = |error: std::io::Error| format!("`{path}` can't be read: {error}");
    let mut reader = BufReader::new(file);
    let mut bytes = Vec::new();
    let mut number = 0;
    let mut cut = 0;
    let next = loop {
        let room = READ_BYTES_MAX as usize - bytes.len();
        let is_wanted = number + 1 >= first;
        let Some(line) = next_line(&mut reader, if is_wanted { room } else { 0 }).map_err(failed)? else { break None };
        number += 1;
        if !is_wanted {
            continue;
        }
        if number - first == count || (line.bytes as usize > room && !bytes.is_empty()) {
            break Some(number);
        }
        cut = line.bytes - line.text.len() as u64;
        bytes.extend(line.text);
    };
    let mut text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) if cut > 0 => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        Err(_) => return Err(format!("`{path}` is not text in these lines")),
    };
    if cut > 0 {
        text.push_str(&format!("\n[{cut} more bytes of this line]"));
    }
    match next {
        Some(next) => text.push_str(&format!("[continue with `line` {next}]")),
        None if number < first => text.push_str(&format!("[the file has {number} lines]")),
        None => {}
    }
    Ok(Output::text(text))
}

fn read(folders: &Folders, place: &CheckedPath, part: Part) -> Result<Output, Refused> {
    let path = place.shown();
    let (folder, name) = folders.open_parent(place, Missing::IsRefused)?;
    let mut file = open_file(&folder, name, &path)?;
    let failed = |error: std::io::Error| format!("`{path}` can't be read: {error}");
    let about = file.metadata().map_err(failed)?;
    let offset = match part {
        Part::Bytes { offset } => offset,
        Part::Lines { first, count } => return lines(&file, &path, first, count),
    };
    file.seek(SeekFrom::Start(offset)).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(READ_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
    let end = offset + bytes.len() as u64;
    let is_whole = end >= about.len();
    let text = match std::str::from_utf8(&bytes) {
        Ok(text) => text,
        // A character that the part's end cuts in two belongs to the next part.
        Err(error) if !is_whole && error.error_len().is_none() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(error) => {
            return Err(format!("`{path}` is not text: byte {} is not UTF-8", offset + error.valid_up_to() as u64));
        }
    };
    if is_whole {
        return Ok(Output::text(text));
    }
    let next = offset + text.len() as u64;
    Ok(Output::text(format!("{text}\n[{next} of {} bytes; continue with `offset` {next}]", about.len())))
}
