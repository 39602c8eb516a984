//! `file_glob`: the files whose paths match a pattern.

use selvedge_model::event::EffectClass;
use selvedge_model::tool::{Reconciled, Risk, Started};
use selvedge_model::{Call, Cancel, Output, Tool, ToolError, ToolSpec};
use serde_json::json;

use super::path::{CheckedPath, Folders, Refused};
use super::pattern;
use super::walk::{Next, Walked, walk};
use crate::error::InvalidTool;
use crate::in_process::{self, InProcessCall};
use crate::schema::Schema;

/// The most files that are returned.
const FILES_MAX: usize = 1000;

/// The tool. It changes nothing and follows no links.
#[derive(Debug)]
pub struct FileGlob {
    folders: Folders,
    spec: ToolSpec,
    schema: Schema,
}

impl FileGlob {
    /// Finds files inside `folders`.
    pub fn new(folders: Folders) -> Result<Self, InvalidTool> {
        let schema = json!({
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "description": "Such as `*.rs` (in any folder), `src/**/*.{ts,tsx}`; relative to `path`."},
                "path": {"type": "string", "description": "The folder to search, relative to the project; `.` if it is left out."}
            },
            "required": ["pattern"],
            "additionalProperties": false
        });
        let description = "Finds files of the project by their names.";
        let spec = in_process::spec("file_glob", description, schema, EffectClass::Pure, Risk::Safe);
        Ok(Self { schema: Schema::compile(&spec.name, &spec.input_schema)?, folders, spec })
    }
}

impl Tool for FileGlob {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn start(&self, call: &Call) -> Result<Box<dyn Started>, ToolError> {
        self.schema.check(&self.spec.name, &call.arguments)?;
        let not_started = |why| ToolError::NotStarted { tool: self.spec.name.clone(), why };
        let text = |name: &str| call.arguments[name].as_str();
        let place = self.folders.place(text("path").unwrap_or(".")).map_err(not_started)?;
        let pattern = pattern::paths(text("pattern").unwrap_or_default()).map_err(not_started)?;
        let folders = self.folders.clone();
        let work = move |cancel: &Cancel| find(&folders, &place, &pattern, cancel).unwrap_or_else(Output::error);
        Ok(InProcessCall::stoppable(&self.spec.name, work))
    }

    /// It has no effect, so it can be made again.
    fn reconcile(&self, _call: &Call, _cancel: &Cancel) -> Reconciled {
        Reconciled::NotDone
    }
}

fn find(folders: &Folders, place: &CheckedPath, wanted: &regex::Regex, cancel: &Cancel) -> Result<Output, Refused> {
    let mut files = Vec::new();
    let mut left_out = 0_usize;
    let walked = walk(folders.open_folder(place)?, cancel, &mut |path, _, _| {
        if wanted.is_match(path) {
            if files.len() < FILES_MAX {
                files.push(place.joined(path));
            } else {
                left_out += 1;
            }
        }
        Next::Continue
    })?;
    let complete = walked == Walked::All;
    Ok(Output { content: json!({"files": files, "left_out": left_out, "complete": complete}), ..Output::default() })
}
