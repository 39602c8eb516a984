//! `file_edit`: replaces an exact piece of a file.
//!
//! The same edit made twice leaves the same file. Two things see to that:
//!
//! - An occurrence of the old text that is already a part of the new text does not count: adding a line after another one a second time
//!   finds nothing to do.
//! - An edit may name the digest of the file that it is meant for. A file with another digest is left as it is; it counts as edited already if
//!   taking the edit back gives the named digest.

use std::fs::File;
use std::io::Read as _;

use rustix::fs::{AtFlags, statat};
use selvedge_model::digest::hex;
use selvedge_model::event::EffectClass;
use selvedge_model::tool::{Reconciled, Risk, Started};
use selvedge_model::{Call, Cancel, Output, Tool, ToolError, ToolSpec};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::path::{CheckedPath, Folders, Missing, Refused, said};
use super::read::open_file;
use super::write::{old_mode, replace, unfinished_name};
use crate::error::InvalidTool;
use crate::in_process::{self, InProcessCall};
use crate::schema::Schema;

/// The largest file that is edited.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// The most occurrences that are replaced, or looked at.
const OCCURRENCES_MAX: usize = 10_000;
/// The most ways to take an edit back that are tried.
const UNDOS_MAX: usize = 100;

/// The tool.
#[derive(Debug)]
pub struct FileEdit {
    folders: Folders,
    spec: ToolSpec,
    schema: Schema,
}

/// What is asked for.
struct Edit {
    old: String,
    new: String,
    all: bool,
    /// The beginning of the digest of the file that is meant, in hexadecimal.
    digest: Option<String>,
}

/// What an edit does to a text.
#[derive(Debug, PartialEq, Eq)]
enum Edited {
    To(String, usize),
    AlreadyDone,
}

impl FileEdit {
    /// Edits inside `folders`.
    pub fn new(folders: Folders) -> Result<Self, InvalidTool> {
        let schema = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "The file, relative to the project."},
                "old": {"type": "string", "minLength": 1, "description": "The exact text to replace, with its white space. It must occur once, unless `all` is true."},
                "new": {"type": "string", "description": "The text in its place; empty deletes."},
                "all": {"type": "boolean", "description": "Replace every occurrence."},
                "digest": {"type": "string", "pattern": "^[0-9a-f]{8,64}$", "description": "The beginning of the file's SHA-256, as an earlier edit reported it; a file with another one is not changed."}
            },
            "required": ["path", "old", "new"],
            "additionalProperties": false
        });
        let description = "Replaces an exact piece of a text file of the project.";
        let spec = in_process::spec("file_edit", description, schema, EffectClass::Idempotent, Risk::Write);
        Ok(Self { schema: Schema::compile(&spec.name, &spec.input_schema)?, folders, spec })
    }
}

impl Tool for FileEdit {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn start(&self, call: &Call) -> Result<Box<dyn Started>, ToolError> {
        self.schema.check(&self.spec.name, &call.arguments)?;
        let not_started = |why| ToolError::NotStarted { tool: self.spec.name.clone(), why };
        let text = |name: &str| call.arguments[name].as_str().unwrap_or_default().to_owned();
        let place = self.folders.place(&text("path")).map_err(not_started)?;
        let edit = Edit {
            old: text("old"),
            new: text("new"),
            all: call.arguments["all"].as_bool().unwrap_or_default(),
            digest: call.arguments["digest"].as_str().map(str::to_owned),
        };
        if edit.old == edit.new {
            return Err(not_started("`old` and `new` are the same".to_owned()));
        }
        let unfinished = unfinished_name(call);
        let folders = self.folders.clone();
        let work = move || apply(&folders, &place, &unfinished, &edit).unwrap_or_else(Output::error);
        Ok(InProcessCall::boxed(&self.spec.name, work))
    }

    /// Making it again has the same effect, so the outcome need not be known.
    fn reconcile(&self, _call: &Call, _cancel: &Cancel) -> Reconciled {
        Reconciled::Unsupported
    }
}

fn apply(folders: &Folders, place: &CheckedPath, unfinished: &str, edit: &Edit) -> Result<Output, Refused> {
    let path = place.shown();
    let _alone = folders.changing();
    let (folder, name) = folders.open_parent(place, Missing::IsRefused)?;
    let mode = old_mode(&folder, name, &path)?;
    let file = open_file(&folder, name, &path)?;
    let failed = |error: std::io::Error| format!("`{path}` can't be read: {error}");
    let before = read_whole(&file, &path).map_err(failed)??;
    let Edited::To(after, count) = edited(&before, edit).map_err(|why| format!("`{path}` is not changed: {why}"))?
    else {
        return Ok(Output::text(format!("`{path}` is already edited so; its SHA-256 is {}", digest(&before))));
    };
    // Another program may have changed it while it was read here.
    let is_same = |stat: &rustix::fs::Stat| {
        file.metadata().is_ok_and(|about| {
            use std::os::unix::fs::MetadataExt as _;
            // The type of the nanoseconds depends on what else rustix is compiled with.
            (about.ino(), about.dev(), about.size(), i128::from(about.mtime_nsec()))
                == (stat.st_ino, stat.st_dev, before.len() as u64, i128::from(stat.st_mtime_nsec))
        })
    };
    if !statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| is_same(&stat)) {
        return Err(format!("`{path}` is not changed: another program changes it at the same time; read it again"));
    }
    replace(&folder, name, unfinished, after.as_bytes(), mode).map_err(|errno| said(path.as_ref(), errno))?;
    let places = if count == 1 { "1 place".to_owned() } else { format!("{count} places") };
    Ok(Output::text(format!("edited {places} in `{path}`; its SHA-256 is {}", digest(&after))))
}

fn read_whole(file: &File, path: &str) -> std::io::Result<Result<String, Refused>> {
    if file.metadata()?.len() > FILE_BYTES_MAX {
        return Ok(Err(format!("`{path}` has more than the {FILE_BYTES_MAX} bytes that can be edited")));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(String::from_utf8(bytes)
        .map_err(|error| format!("`{path}` is not text: byte {} is not UTF-8", error.utf8_error().valid_up_to())))
}

fn digest(text: &str) -> String {
    hex(&Sha256::digest(text))
}

/// The text after an edit; an error is the reason why it is not made.
fn edited(text: &str, edit: &Edit) -> Result<Edited, String> {
    if let Some(wanted) = &edit.digest
        && let is = digest(text)
        && !is.starts_with(wanted.as_str())
    {
        if undone(text, edit).any(|before| digest(&before).starts_with(wanted.as_str())) {
            return Ok(Edited::AlreadyDone);
        }
        return Err(format!("its SHA-256 is {is}, so it is not the file that is meant; read it again"));
    }
    let places = places(text, edit);
    match places.len() {
        0 if !edit.new.is_empty() && text.contains(&edit.new) => Ok(Edited::AlreadyDone),
        0 => Err("it does not contain the text in `old`, exactly as given".to_owned()),
        1 => Ok(Edited::To(spliced(text, &places, edit), 1)),
        count if count > OCCURRENCES_MAX => {
            Err(format!("it contains the text in `old` more than {OCCURRENCES_MAX} times"))
        }
        count if edit.all => Ok(Edited::To(spliced(text, &places, edit), count)),
        count => {
            Err(format!("it contains the text in `old` {count} times; give more of the text around it, or set `all`"))
        }
    }
}

/// Where the old text occurs, without occurrences that are already a part of the new text.
fn places(text: &str, edit: &Edit) -> Vec<usize> {
    let inside: Vec<usize> = edit.new.match_indices(&edit.old).map(|(at, _)| at).take(OCCURRENCES_MAX).collect();
    let is_done = |at: usize| {
        inside.iter().any(|offset| {
            at.checked_sub(*offset).is_some_and(|from| text.as_bytes()[from..].starts_with(edit.new.as_bytes()))
        })
    };
    text.match_indices(&edit.old).map(|(at, _)| at).filter(|at| !is_done(*at)).take(OCCURRENCES_MAX + 1).collect()
}

fn spliced(text: &str, places: &[usize], edit: &Edit) -> String {
    let mut spliced = String::with_capacity(text.len());
    let mut from = 0;
    for at in places {
        spliced.push_str(&text[from..*at]);
        spliced.push_str(&edit.new);
        from = at + edit.old.len();
    }
    spliced.push_str(&text[from..]);
    spliced
}

/// What the text may have been before the edit.
fn undone<'a>(text: &'a str, edit: &'a Edit) -> impl Iterator<Item = String> + 'a {
    let all = edit.all.then(|| text.replace(edit.new.as_str(), &edit.old));
    let single = text.match_indices(edit.new.as_str()).take(UNDOS_MAX);
    let single = single.map(|(at, _)| format!("{}{}{}", &text[..at], edit.old, &text[at + edit.new.len()..]));
    all.into_iter().chain(single)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(old: &str, new: &str) -> Edit {
        Edit { old: old.to_owned(), new: new.to_owned(), all: false, digest: None }
    }

    fn twice(text: &str, edit: &Edit) -> (String, Edited) {
        let Edited::To(after, _) = edited(text, edit).unwrap() else { panic!("it changed nothing") };
        let again = edited(&after, edit).unwrap();
        (after, again)
    }

    #[test]
    fn an_edit_made_again_finds_nothing_to_do() {
        for (text, old, new, after) in [
            ("one\ntwo\n", "one\n", "one\nmore\n", "one\nmore\ntwo\n"),
            ("one\ntwo\n", "two", "and two", "one\nand two\n"),
            ("a", "a", "aa", "aa"),
            ("x = 1", "1", "2", "x = 2"),
        ] {
            assert_eq!(twice(text, &edit(old, new)), (after.to_owned(), Edited::AlreadyDone), "{text:?}");
        }
        let all = Edit { all: true, ..edit("a", "ba") };
        assert_eq!(twice("a-a-a", &all), ("ba-ba-ba".to_owned(), Edited::AlreadyDone));
    }

    #[test]
    fn a_deletion_is_known_again_by_the_digest_of_the_file_it_was_meant_for() {
        let edit = Edit { digest: Some(digest("keep cut keep")[..12].to_owned()), ..edit(" cut", "") };
        assert_eq!(twice("keep cut keep", &edit), ("keep keep".to_owned(), Edited::AlreadyDone));
        assert!(edited("other cut", &edit).unwrap_err().contains("not the file that is meant"));
    }

    #[test]
    fn an_old_text_that_is_missing_or_ambiguous_is_refused() {
        assert!(edited("abc", &edit("x", "y")).unwrap_err().contains("does not contain"));
        assert!(edited("a b a", &edit("a", "c")).unwrap_err().contains("2 times"));
        assert_eq!(edited("a b a", &Edit { all: true, ..edit("a", "c") }), Ok(Edited::To("c b c".to_owned(), 2)));
    }
}
