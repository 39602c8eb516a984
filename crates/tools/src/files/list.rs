//! `file_list`: the entries of a folder.

use rustix::fs::{AtFlags, Dir, FileType, statat};
use selvedge_model::event::EffectClass;
use selvedge_model::tool::{Reconciled, Risk, Started};
use selvedge_model::{Call, Cancel, Output, Tool, ToolError, ToolSpec};
use serde_json::{Value, json};

use super::path::{CheckedPath, Folders, Refused, said};
use crate::error::InvalidTool;
use crate::in_process::{self, InProcessCall};
use crate::schema::Schema;

/// The most entries that are returned.
const ENTRIES_MAX: usize = 1000;
/// The most entries that are read; a folder may have millions.
const ENTRIES_SEEN_MAX: usize = 100_000;

/// The tool. It changes nothing and follows no links.
#[derive(Debug)]
pub struct FileList {
    folders: Folders,
    spec: ToolSpec,
    schema: Schema,
}

impl FileList {
    /// Lists inside `folders`.
    pub fn new(folders: Folders) -> Result<Self, InvalidTool> {
        let path =
            json!({"type": "string", "description": "The folder, relative to the project; `.` if it is left out."});
        let schema = json!({"type": "object", "properties": {"path": path}, "additionalProperties": false});
        let description = "Lists the files and folders of a folder of the project.";
        let spec = in_process::spec("file_list", description, schema, EffectClass::Pure, Risk::Safe);
        Ok(Self { schema: Schema::compile(&spec.name, &spec.input_schema)?, folders, spec })
    }
}

impl Tool for FileList {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn start(&self, call: &Call) -> Result<Box<dyn Started>, ToolError> {
        self.schema.check(&self.spec.name, &call.arguments)?;
        let place = self.folders.place(call.arguments["path"].as_str().unwrap_or("."));
        let place = place.map_err(|why| ToolError::NotStarted { tool: self.spec.name.clone(), why })?;
        let folders = self.folders.clone();
        Ok(InProcessCall::boxed(&self.spec.name, move || list(&folders, &place).unwrap_or_else(Output::error)))
    }

    /// It has no effect, so it can be made again.
    fn reconcile(&self, _call: &Call, _cancel: &Cancel) -> Reconciled {
        Reconciled::NotDone
    }
}

fn list(folders: &Folders, place: &CheckedPath) -> Result<Output, Refused> {
    let path = place.shown();
    let folder = folders.open_folder(place)?;
    let failed = |errno| said(path.as_ref(), errno);
    let mut names = Vec::new();
    for entry in Dir::read_from(&folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
        }
        if names.len() == ENTRIES_SEEN_MAX {
            break;
        }
    }
    names.sort();
    let entries = names.iter().take(ENTRIES_MAX).map(|name| {
        let stat = statat(&folder, name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW).ok();
        let kind = stat.map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode));
        let name = name.to_string_lossy();
        match kind {
            FileType::RegularFile => json!({"name": name, "kind": "file", "bytes": stat.map(|stat| stat.st_size)}),
            FileType::Directory => json!({"name": name, "kind": "folder"}),
            FileType::Symlink => json!({"name": name, "kind": "link"}),
            _ => json!({"name": name, "kind": "other"}),
        }
    });
    let entries: Vec<Value> = entries.collect();
    let left_out = names.len() - entries.len();
    Ok(Output { content: json!({"path": path, "entries": entries, "left_out": left_out}), ..Output::default() })
}
