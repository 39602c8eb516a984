//! The files of a project that a backup can include: agents, directives, tools, knowledge and configuration.
//!
//! ```text
//! BACKUP/project/project.json    the list of files with their hashes; signed, and bound to the backup by its id
//! BACKUP/project/files/…         the files, by their path below `.ai`
//! ```
//!
//! - Regular files only: if there is a link or anything else, everything is refused before anything is copied.
//! - The folder is built as `project.partial` and gets its name when everything is synced.
//! - Everything is checked before it is restored: the signature, the backup's id, every name and every hash. Nothing is overwritten; an
//!   identical file is left, so that an interrupted restore can be run again.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::OFlags;
use selvedge_log::document::{self, DocumentKind};
use selvedge_log::hash::sha256;
use selvedge_log::{Signer, Trust};
use selvedge_model::{Digest, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Exit, Failure, Result};

/// The folders below `.ai` that are included.
pub(crate) const FOLDERS: [&str; 6] = ["agents", "directives", "graphs", "tools", "knowledge", "config"];
const KIND: DocumentKind = DocumentKind::new("backup");
const ITEM: &str = "project";
const FOLDER: &str = "project";
const PARTIAL: &str = "project.partial";
const LIST: &str = "project.json";
const FILES: &str = "files";
const FILES_MAX: usize = 10_000;
const FILE_BYTES_MAX: u64 = 64 << 20;
const LIST_BYTES_MAX: u64 = 1 << 30;
const DEPTH_MAX: usize = 16;

/// The signed list of a project's files in a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileList {
    /// The backup that it belongs to.
    pub(crate) backup_id: String,
    /// The files, by path.
    pub(crate) files: Vec<FileEntry>,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileEntry {
    /// Its path below `.ai`, with `/`.
    path: String,
    bytes: u64,
    sha256: Digest,
    executable: bool,
}

/// Number and size of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct FileTotals {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

impl FileList {
    pub(crate) fn held(&self) -> FileTotals {
        FileTotals { files: self.files.len() as u64, bytes: self.files.iter().map(|file| file.bytes).sum() }
    }
}

/// The files of a project to include, by their path below `.ai`. Refused if one of them is not a regular file.
pub(crate) fn find(project: &Path) -> Result<Vec<String>> {
    let ai = project.join(".ai");
    let mut found = Vec::new();
    for folder in FOLDERS {
        if ai.join(folder).symlink_metadata().is_ok() {
            look(&ai, folder, 0, &mut found)?;
        }
    }
    found.sort();
    Ok(found)
}

fn look(ai: &Path, place: &str, depth: usize, found: &mut Vec<String>) -> Result<()> {
    let path = ai.join(place);
    let failed = |error: io::Error| Failure::io("read", &path, &error);
    let kind = path.symlink_metadata().map_err(failed)?.file_type();
    if kind.is_file() && depth > 0 {
        found.push(place.to_owned());
        return if found.len() > FILES_MAX { Err(too_many(ai)) } else { Ok(()) };
    }
    if !kind.is_dir() {
        return Err(no_plain_file(&path, kind.is_symlink()));
    }
    if depth >= DEPTH_MAX {
        return Err(Failure::usage(format!("`{}` is nested too deeply to be included", path.display())));
    }
    for entry in fs::read_dir(&path).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().into_string();
        let name =
            name.map_err(|_| Failure::usage(format!("`{}` contains a name that is not UTF-8", path.display())))?;
        look(ai, &format!("{place}/{name}"), depth + 1, found)?;
    }
    Ok(())
}

fn too_many(ai: &Path) -> Failure {
    Failure::usage(format!("`{}` contains more than 10,000 files", ai.display()))
}

fn no_plain_file(path: &Path, is_link: bool) -> Failure {
    let what = if is_link { "is a symbolic link" } else { "is neither a file nor a folder" };
    let message = format!("`{}` {what}, and can't be included", path.display());
    Failure::new(Exit::NotAllowed, "symbolic_link", message).hint("replace it by the file itself, or move it away")
}

/// Copies files of a project into a backup, with a signed list. Everything is synced when this returns.
pub(crate) fn copy(
    project: &Path,
    found: &[String],
    backup: &Path,
    backup_id: &str,
    signer: &Signer,
    at: Timestamp,
) -> Result<FileList> {
    let partial = backup.join(PARTIAL);
    let failed = |error: io::Error| Failure::io("write", &partial, &error);
    if partial.symlink_metadata().is_ok() {
        fs::remove_dir_all(&partial).map_err(failed)?;
    }
    let mut listed = FileList { backup_id: backup_id.to_owned(), files: Vec::new() };
    make_folder(&partial)?;
    make_folder(&partial.join(FILES))?;
    for path in found {
        let (bytes, executable) = read(&project.join(".ai").join(path))?;
        write_below(&partial.join(FILES), path, &bytes, executable)?;
        listed.files.push(FileEntry {
            path: path.clone(),
            bytes: bytes.len() as u64,
            sha256: sha256(&bytes),
            executable,
        });
    }
    let value = serde_json::to_value(&listed).unwrap_or_default();
    let text = document::sign_json(KIND, ITEM, value, signer, at).map_err(|error| Failure::of(&error))?;
    write_below(&partial, LIST, text.as_bytes(), false)?;
    fs::rename(&partial, backup.join(FOLDER)).map_err(failed)?;
    sync_folder(backup)?;
    Ok(listed)
}

/// Whether a backup includes files of a project.
pub(crate) fn is_in(backup: &Path) -> bool {
    backup.join(FOLDER).join(LIST).symlink_metadata().is_ok()
}

/// Reads and checks the project's files in a backup: the signature, the names and every hash. Writes nothing.
pub(crate) fn check(backup: &Path, trust: &Trust) -> Result<(FileList, Vec<Vec<u8>>)> {
    let path = backup.join(FOLDER).join(LIST);
    if !is_in(backup) {
        let message = format!("`{}` includes no files of a project", backup.display());
        return Err(Failure::new(Exit::NotFound, "file_not_found", message)
            .hint("only backups of `selvedge backup --project` do; leave out `--project` to restore the threads"));
    }
    let listed = serde_json::from_value::<FileList>(signed(&path, ITEM, trust)?);
    let listed = listed.map_err(|error| changed(&path, &error.to_string()))?;
    if signed(&backup.join("backup.json"), "backup", trust)?.get("backup_id") != Some(&listed.backup_id.as_str().into())
    {
        return Err(changed(&path, "it belongs to another backup"));
    }
    let mut contents = Vec::new();
    for file in &listed.files {
        check_name(&file.path).map_err(|why| changed(&path, why))?;
        let copy = backup.join(FOLDER).join(FILES).join(&file.path);
        let (bytes, _) = read(&copy)?;
        if sha256(&bytes) != file.sha256 || bytes.len() as u64 != file.bytes {
            return Err(changed(&copy, "it is not the file on the signed list"));
        }
        contents.push(bytes);
    }
    Ok((listed, contents))
}

/// The content of a signed file of a backup.
fn signed(path: &Path, item: &str, trust: &Trust) -> Result<Value> {
    let (bytes, _) = read_most(path, LIST_BYTES_MAX)?;
    let verified = document::verify_json(KIND, item, &bytes, trust).map_err(|error| {
        let failure = Failure::of(&error);
        Failure { message: format!("`{}`: {}", path.display(), failure.message), ..failure }
    })?;
    Ok(verified.value)
}

fn changed(path: &Path, why: &str) -> Failure {
    Failure::new(Exit::Integrity, "integrity", format!("`{}`: {why}", path.display()))
        .hint("use another backup; without `--project` only the threads are restored")
}

/// Checks a path of a signed list: the owner of the key could have signed another list than this program writes.
fn check_name(path: &str) -> Result<(), &'static str> {
    let is_plain = Path::new(path).components().all(|step| matches!(step, Component::Normal(_)));
    let is_known = path.split_once('/').is_some_and(|(folder, rest)| FOLDERS.contains(&folder) && !rest.is_empty());
    if is_plain && is_known && !path.contains("//") {
        Ok(())
    } else {
        Err("it names a file outside of the included folders")
    }
}

/// Refuses to overwrite files; an identical file is accepted.
pub(crate) fn check_free(project: &Path, listed: &FileList, contents: &[Vec<u8>]) -> Result<()> {
    for (file, bytes) in listed.files.iter().zip(contents) {
        let target = project.join(".ai").join(&file.path);
        for above in target.ancestors().skip(1).take_while(|above| *above != project) {
            match above.symlink_metadata() {
                Ok(found) if !found.is_dir() => return Err(no_plain_file(above, found.is_symlink())),
                _ => {}
            }
        }
        match target.symlink_metadata() {
            Err(_) => {}
            Ok(found) if found.is_file() && read(&target).is_ok_and(|(there, _)| there == *bytes) => {}
            Ok(_) => {
                let message = format!("`{}` already exists, with other content", target.display());
                return Err(Failure::new(Exit::Conflict, "file_exists", message)
                    .hint("nothing was restored; move it away, or restore into another folder with `-C DIR`"));
            }
        }
    }
    Ok(())
}

/// Writes the files of a project. Everything is synced when this returns.
pub(crate) fn put(project: &Path, listed: &FileList, contents: &[Vec<u8>]) -> Result<()> {
    let ai = project.join(".ai");
    if ai.symlink_metadata().is_err() {
        make_folder(&ai)?;
    }
    for (file, bytes) in listed.files.iter().zip(contents) {
        if ai.join(&file.path).symlink_metadata().is_err() {
            write_below(&ai, &file.path, bytes, file.executable)?;
        }
    }
    Ok(())
}

/// Reads a regular file, never through a link, and whether it is executable.
fn read(path: &Path) -> Result<(Vec<u8>, bool)> {
    read_most(path, FILE_BYTES_MAX)
}

fn read_most(path: &Path, bytes_max: u64) -> Result<(Vec<u8>, bool)> {
    let failed = |error: io::Error| Failure::io("read", path, &error);
    // Non-blocking: opening a pipe would wait for a writer.
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or_default();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(no_plain_file(path, false));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > bytes_max {
        Err(Failure::usage(format!("`{}` is longer than {} MiB", path.display(), bytes_max >> 20)))
    } else {
        Ok((bytes, found.permissions().mode() & 0o100 != 0))
    }
}

/// Writes a new file below a folder, with its parent folders; synced on return.
fn write_below(folder: &Path, place: &str, bytes: &[u8], executable: bool) -> Result<()> {
    let path = folder.join(place);
    let failed = |error: io::Error| Failure::io("write", &path, &error);
    let mut above = PathBuf::from(folder);
    for step in Path::new(place).parent().into_iter().flat_map(Path::components) {
        above.push(step);
        if above.symlink_metadata().is_err() {
            make_folder(&above)?;
        }
    }
    let mode = if executable { 0o700 } else { 0o600 };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path).map_err(failed)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed)?;
    sync_folder(&above)
}

fn make_folder(path: &Path) -> Result<()> {
    DirBuilder::new().mode(0o700).create(path).map_err(|error| Failure::io("create", path, &error))?;
    path.parent().map_or(Ok(()), sync_folder)
}

fn sync_folder(path: &Path) -> Result<()> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(|error| Failure::io("sync", path, &error))
}
