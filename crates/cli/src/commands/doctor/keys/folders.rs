//! The folders of the user's keys: access rights, and interrupted rotations.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use selvedge_store::doctor::{Finding, Severity};
use serde_json::Value;

use super::KEY;
use crate::context::User;
use crate::text::shell_word;

/// Write access for other users.
const OTHER_WRITE: u32 = 0o022;
/// Any access for other users.
const ANY_OTHER: u32 = 0o077;

/// Checks the folders that loading a key does not check.
pub(super) fn look(user: &User) -> Vec<Finding> {
    let keys = user.folder.join("keys");
    let retired = user.keys().retired();
    let mut findings = Vec::new();
    if fs::symlink_metadata(&keys).is_ok_and(|found| found.is_symlink()) {
        let what = format!("`{}` is a symbolic link", keys.display());
        let why = "any user who can change the link decides which keys are yours";
        let found = Finding::new(Severity::Warning, "keys_unsafe", KEY, what, why);
        findings.push(found.help("replace the link by the folder itself"));
    }
    let mut private: Vec<PathBuf> = files(&retired);
    private.push(retired);
    let loose = [user.folder.clone(), keys].into_iter().filter(|path| has_mode(path, OTHER_WRITE));
    let loose = loose.map(|path| (path, "be written", "go-w"));
    let open = private.into_iter().filter(|path| has_mode(path, ANY_OTHER));
    let open = open.map(|path| (path, "be read or written", "go-rwx"));
    for (path, what, mode) in loose.chain(open) {
        let word = shell_word(&path.display().to_string());
        let what = format!("`{}` can {what} by other users", path.display());
        let why = "another user could replace your keys, or sign with your earlier ones";
        let found = Finding::new(Severity::Warning, "keys_unsafe", KEY, what, why);
        findings.push(found.help(format!("`chmod {mode} {word}`")));
    }
    if fs::symlink_metadata(user.keys().next()).is_ok() {
        let what = "a rotation of your key was interrupted";
        let why = "everything stays valid; the new key exists and may not be in use yet";
        let found = Finding::new(Severity::Warning, "rotation_unfinished", KEY, what, why);
        findings.push(found.help("`selvedge keys rotate` finishes it"));
    }
    findings
}

/// Findings for earlier keys without a recorded rotation.
pub(super) fn broken_chain(user: &User) -> Vec<Finding> {
    // A rotation in progress, or interrupted, has a finding of its own.
    if fs::symlink_metadata(user.keys().next()).is_ok() {
        return Vec::new();
    }
    let handed_over: BTreeSet<String> = files(&user.keys().chain()).iter().filter_map(|path| from(path)).collect();
    let retired = files(&user.keys().retired());
    let names = retired.iter().filter(|path| path.extension().is_some_and(|end| end == "pem"));
    let names = names.filter_map(|path| path.file_stem()?.to_str().map(str::to_owned));
    let missing = names.filter(|key| !handed_over.contains(key));
    missing
        .map(|key| {
            let short = key.get(..16).unwrap_or(&key);
            let what = format!("no recorded rotation names the successor of your earlier key {short}");
            let why = "a file of `keys/chain` is missing: threads that the key signed can be read, but not continued";
            let found = Finding::new(Severity::Warning, "key_chain_broken", "the chain of your keys", what, why);
            found.help(format!("restore the files of `{}` from a copy", user.keys().chain().display()))
        })
        .collect()
}

/// The predecessor in a recorded rotation.
fn from(path: &Path) -> Option<String> {
    let step: Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    step.get("from")?.as_str().map(str::to_owned)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries.map(|entry| entry.path()).collect();
    found.sort();
    found
}

fn has_mode(path: &Path, forbidden: u32) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| !found.is_symlink() && found.mode() & forbidden != 0)
}
