//! The folders of the user's keys: who may write them, and what a rotation left there.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use selvedge_store::doctor::{Finding, Severity};
use serde_json::Value;

use super::KEY;
use crate::context::User;
use crate::text::shell_word;

/// Those besides the owner who may write.
const OTHER_WRITE: u32 = 0o022;
/// Those besides the owner who may do anything.
const ANY_OTHER: u32 = 0o077;

/// Looks at the folders that nobody looks at who loads a key.
pub(super) fn look(user: &User) -> Vec<Finding> {
    let keys = user.folder.join("keys");
    let retired = user.keys().retired();
    let mut findings = Vec::new();
    if fs::symlink_metadata(&keys).is_ok_and(|found| found.is_symlink()) {
        let what = format!("`{}` is a symbolic link", keys.display());
        let why = "whoever can change the link decides which keys are yours";
        let found = Finding::new(Severity::Warning, "keys_unsafe", KEY, what, why);
        findings.push(found.help("put the folder itself in its place"));
    }
    let mut private: Vec<PathBuf> = files(&retired);
    private.push(retired);
    let loose = [user.folder.clone(), keys].into_iter().filter(|path| has_mode(path, OTHER_WRITE));
    let loose = loose.map(|path| (path, "be written", "go-w"));
    let open = private.into_iter().filter(|path| has_mode(path, ANY_OTHER));
    let open = open.map(|path| (path, "be read or written", "go-rwx"));
    for (path, what, mode) in loose.chain(open) {
        let word = shell_word(&path.display().to_string());
        let what = format!("`{}` can {what} by others", path.display());
        let why = "whoever may do that can take your keys' places, or sign as you once did";
        let found = Finding::new(Severity::Warning, "keys_unsafe", KEY, what, why);
        findings.push(found.help(format!("`chmod {mode} {word}`")));
    }
    if fs::symlink_metadata(user.keys().next()).is_ok() {
        let what = "a rotation of your key was cut short";
        let why = "everything stays valid; the new key is made and may not be in place yet";
        let found = Finding::new(Severity::Warning, "rotation_unfinished", KEY, what, why);
        findings.push(found.help("`selvedge keys rotate` finishes it"));
    }
    findings
}

/// Names keys that sign no more, of which no statement says who took over from them.
pub(super) fn broken_chain(user: &User) -> Vec<Finding> {
    // While a rotation is under way, or was cut short, that is told by its own finding.
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
            let what = format!("no statement says who took over from your earlier key {short}");
            let why =
                "a file of `keys/chain` is missing: threads that the key signed can be read, and not be gone on with";
            let found = Finding::new(Severity::Warning, "chain_broken", "the chain of your keys", what, why);
            found.help(format!("put the files of `{}` back from a copy", user.keys().chain().display()))
        })
        .collect()
}

/// Whom a step of the chain takes over from.
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
