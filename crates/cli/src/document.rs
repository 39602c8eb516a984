//! Documents: the kind and id of a file, from its path; reading and replacing it.
//!
//! The kind follows from the folder below the project's `.ai`, the id is the path within the project, with `/`. So a file
//! that is moved, or used as another kind, no longer verifies unless the user names what it was signed as.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::OFlags;
use selvedge_log::document::{DocumentKind, Form};

use crate::context::threads_folder;
use crate::error::{Exit, Failure, Result};

/// The largest file that is signed or verified.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// The kinds that people sign; the others are signed by the store.
const BY_PEOPLE: [&str; 7] = ["directive", "knowledge", "tool", "agent", "graph", "config", "document"];

/// Reads the name of a kind from the command line.
pub(crate) fn parse_kind(text: &str) -> std::result::Result<DocumentKind, String> {
    DocumentKind::known(text).ok_or_else(|| {
        let names = DocumentKind::KNOWN.map(DocumentKind::as_str);
        format!("not one of {}", names.join(", "))
    })
}

/// A file with its kind and id.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) path: PathBuf,
    pub(crate) bytes: Vec<u8>,
    /// Its format, if it can hold a signature.
    pub(crate) form: Option<Form>,
    pub(crate) kind: DocumentKind,
    pub(crate) id: String,
    /// Whether it belongs to the store, which alone writes it.
    pub(crate) is_of_store: bool,
}

impl Document {
    /// Reads a file, never through a symbolic link; its kind and id follow from its path, unless they are given.
    pub(crate) fn read(path: &Path, kind: Option<DocumentKind>, id: Option<&str>) -> Result<Self> {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| Failure::usage(format!("`{}` has no name in UTF-8", path.display())))?;
        let bytes = read_all(path)?;
        let place = ItemPath::of(path, name);
        Ok(Self {
            path: path.to_owned(),
            form: Form::of(name, &bytes),
            bytes,
            kind: kind.unwrap_or(place.kind),
            id: id.map_or(place.id, str::to_owned),
            is_of_store: place.is_of_store,
        })
    }

    /// Whether people sign such documents.
    pub(crate) fn is_signed_by_people(&self) -> bool {
        !self.is_of_store && BY_PEOPLE.contains(&self.kind.as_str())
    }

    /// The format, or the failure if it has none.
    pub(crate) fn form(&self) -> Result<Form> {
        self.form.ok_or_else(|| {
            let message = format!("`{}` has no format that can hold a signature", self.path.display());
            let hint = "supported are JSON, Markdown, HTML, YAML, TOML, Python, shell, JavaScript, TypeScript, Rust, Go, and scripts that begin with `#!`";
            Failure { code: "document_format_unknown", ..Failure::usage(message) }.hint(hint)
        })
    }

    /// The file's text.
    pub(crate) fn text(&self) -> Result<&str> {
        std::str::from_utf8(&self.bytes).map_err(|_| {
            let message = format!("`{}` is not UTF-8", self.path.display());
            Failure { code: "document_not_utf8", ..Failure::usage(message) }
        })
    }
}

fn read_all(path: &Path) -> Result<Vec<u8>> {
    refuse_link(path)?;
    let failed = |error: io::Error| Failure::io("read", path, &error);
    // Non-blocking: opening a pipe would wait for a writer.
    let no_link = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or_default();
    let file = OpenOptions::new().read(true).custom_flags(no_link).open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(Failure::usage(format!("`{}` is not a regular file", path.display())));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(Failure::usage(format!("`{}` is longer than 64 MiB", path.display())));
    }
    Ok(bytes)
}

/// The kind and id that follow from a path.
#[derive(Debug, PartialEq, Eq)]
struct ItemPath {
    kind: DocumentKind,
    id: String,
    is_of_store: bool,
}

impl ItemPath {
    fn of(path: &Path, name: &str) -> Self {
        let elsewhere = || Self { kind: known("document"), id: name.to_owned(), is_of_store: false };
        let Some(folder) =
            path.parent().map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
        else {
            return elsewhere();
        };
        let Ok(folder) = fs::canonicalize(folder) else { return elsewhere() };
        let project = folder.ancestors().find(|project| threads_folder(project).symlink_metadata().is_ok());
        let inside = project.and_then(|project| folder.strip_prefix(project).ok());
        match inside.map(words) {
            Some(Some(folders)) => Self::inside(&folders, name),
            _ => elsewhere(),
        }
    }

    /// The kind and id of a file in these folders of a project.
    fn inside(folders: &[&str], name: &str) -> Self {
        let id = folders.iter().chain([&name]).copied().collect::<Vec<_>>().join("/");
        let of_thread = |kind: &str, folder: &str| (known(kind), folder.replace('~', "/"));
        let stem = name.strip_suffix(".json").unwrap_or(name);
        let (kind, id) = match folders {
            [".ai", "agent", "threads", "tombstones"] => of_thread("tombstone", stem),
            [".ai", "agent", "threads", thread] if name == "thread.json" => of_thread("thread", thread),
            [".ai", "agent", "threads", thread] if name == "capabilities.md" => of_thread("capabilities", thread),
            [".ai", "directives", ..] => (known("directive"), id),
            [".ai", "knowledge", ..] => (known("knowledge"), id),
            [".ai", "tools", ..] => (known("tool"), id),
            [".ai", "agents", ..] => (known("agent"), id),
            [".ai", "graphs", ..] => (known("graph"), id),
            [".ai", "config", ..] => (known("config"), id),
            _ => (known("document"), id),
        };
        Self { kind, id, is_of_store: folders.starts_with(&[".ai", "agent"]) }
    }
}

fn known(name: &str) -> DocumentKind {
    DocumentKind::known(name).unwrap_or(DocumentKind::new("document"))
}

/// The folders of a relative path; nothing if one is not UTF-8.
fn words(path: &Path) -> Option<Vec<&str>> {
    path.components()
        .map(|part| match part {
            Component::Normal(word) => word.to_str(),
            _ => None,
        })
        .collect()
}

/// Refuses a symbolic link: its target may belong to another user, and is not where its name says.
pub(crate) fn refuse_link(path: &Path) -> Result<()> {
    let found = fs::symlink_metadata(path).map_err(|error| Failure::io("read", path, &error))?;
    if !found.is_symlink() {
        return Ok(());
    }
    let message = format!("`{}` is a symbolic link", path.display());
    Err(Failure::new(Exit::NotAllowed, "symbolic_link", message).hint("name its target instead"))
}

/// Replaces the content of a file atomically; the new content is durable when this returns.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = |error: io::Error| Failure::io("write", path, &error);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
    let written = write_beside(path, &temporary, bytes);
    if written.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&temporary);
    }
    written.map_err(failed)
}

fn write_beside(path: &Path, temporary: &Path, bytes: &[u8]) -> io::Result<()> {
    let permissions = fs::metadata(path)?.permissions();
    let mut file = OpenOptions::new().write(true).create_new(true).open(temporary)?;
    file.set_permissions(permissions)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(temporary, path)?;
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_and_id_follow_from_the_path() {
        for (folders, name, kind, id) in [
            (&[".ai", "directives", "a"][..], "b.md", "directive", ".ai/directives/a/b.md"),
            (&[".ai", "knowledge"], "b.md", "knowledge", ".ai/knowledge/b.md"),
            (&[".ai", "config", "agent"], "c.yaml", "config", ".ai/config/agent/c.yaml"),
            (&[".ai", "agents"], "d.yaml", "agent", ".ai/agents/d.yaml"),
            (&[".ai", "agent", "threads", "a~b"], "thread.json", "thread", "a/b"),
            (&[".ai", "agent", "threads", "a~b"], "capabilities.md", "capabilities", "a/b"),
            (&[".ai", "agent", "threads", "tombstones"], "a~b.json", "tombstone", "a/b"),
            (&["docs"], "e.md", "document", "docs/e.md"),
            (&[], "f.md", "document", "f.md"),
        ] {
            let place = ItemPath::inside(folders, name);
            assert_eq!((place.kind.as_str(), place.id.as_str()), (kind, id));
            assert_eq!(place.is_of_store, folders.get(1) == Some(&"agent"));
        }
    }
}
