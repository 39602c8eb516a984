//! Denied access to files of the user: the file or folder that denies it, its mode and owner, and how to get access.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::{Exit, Failure};
use crate::text::shell_word;

/// The rights that an owner needs on a folder and on a file.
const FOLDER: u32 = 0o700;
const FILE: u32 = 0o600;

/// The failure for a file or folder without access; none for other errors.
pub(crate) fn denied(path: &Path, source: &io::Error) -> Option<Failure> {
    let shown = path.display();
    if source.kind() == io::ErrorKind::ReadOnlyFilesystem {
        let message = format!("can't use `{shown}`: it is on a disk that is mounted read-only");
        let failure = Failure::new(Exit::NotAllowed, "permission_denied", message);
        return Some(failure.hint("mount it writable, or set SELVEDGE_HOME to another folder"));
    }
    if source.kind() != io::ErrorKind::PermissionDenied {
        return None;
    }
    let Some((blocking, found)) = blocking(path) else {
        let message = format!("can't use `{shown}`: permission denied");
        return Some(Failure::new(Exit::NotAllowed, "permission_denied", message));
    };
    let own = rustix::process::geteuid().as_raw();
    let mode = found.mode() & 0o7777;
    let owner = found.uid();
    let name = blocking.display();
    let message = format!(
        "can't use `{shown}`: permission denied; `{name}` has mode {mode:04o} and belongs to user {owner} (you are user {own})"
    );
    let word = shell_word(&name.to_string());
    let hint = if owner != own {
        format!("`sudo chown -R {own} {word}` changes its owner; or set SELVEDGE_HOME to a folder of your own")
    } else if found.is_dir() {
        format!("`chmod u+rwx {word}` restores your access")
    } else {
        format!("`chmod u+rw {word}` restores your access")
    };
    Some(Failure::new(Exit::NotAllowed, "permission_denied", message).hint(hint))
}

/// The nearest file or folder on the path whose mode or owner denies access; else the nearest that exists.
fn blocking(path: &Path) -> Option<(&Path, Metadata)> {
    let own = rustix::process::geteuid().as_raw();
    let mut nearest = None;
    for at in path.ancestors() {
        let Ok(found) = fs::symlink_metadata(at) else { continue };
        let needed = if found.is_dir() { FOLDER } else { FILE };
        // Folders further up may belong to another user, such as `/home`.
        let is_near = nearest.is_none();
        if (found.uid() == own && found.mode() & needed != needed) || (is_near && found.uid() != own) {
            return Some((at, found));
        }
        nearest = nearest.or(Some((at, found)));
    }
    nearest
}
