//! `file_read`: the text of a file, in parts if it is long.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

use rustix::fs::{Mode, OFlags, openat};
use selvedge_model::event::EffectClass;
use selvedge_model::tool::{Reconciled, Risk, Started};
use selvedge_model::{Call, Cancel, Output, Tool, ToolError, ToolSpec};
use serde_json::json;

use super::path::{CheckedPath, Folders, Missing, Refused, why_not};
use crate::error::InvalidTool;
use crate::in_process::{self, InProcessCall};
use crate::schema::Schema;

/// The most bytes of a file that are returned at once.
const READ_BYTES_MAX: u64 = 256 * 1024;

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
                "offset": {"type": "integer", "minimum": 0, "description": "The byte to begin at."}
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
        let offset = call.arguments["offset"].as_u64().unwrap_or_default();
        let folders = self.folders.clone();
        Ok(InProcessCall::boxed(&self.spec.name, move || read(&folders, &place, offset).unwrap_or_else(Output::error)))
    }

    /// It has no effect, so it can be made again.
    fn reconcile(&self, _call: &Call, _cancel: &Cancel) -> Reconciled {
        Reconciled::NotDone
    }
}

fn read(folders: &Folders, place: &CheckedPath, offset: u64) -> Result<Output, Refused> {
    let path = place.shown();
    let (folder, name) = folders.open_parent(place, Missing::IsRefused)?;
    // Without NONBLOCK, opening a named pipe would wait for its writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = openat(&folder, name, flags, Mode::empty());
    let mut file = File::from(opened.map_err(|errno| why_not(&folder, name, &path, errno))?);
    let failed = |error: std::io::Error| format!("`{path}` can't be read: {error}");
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() {
        return Err(format!("`{path}` is not a file"));
    }
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
