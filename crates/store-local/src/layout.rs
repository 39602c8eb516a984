//! The paths of a store.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use selvedge_model::{AgentId, Digest, DirectiveId, OwnerId, ThreadId};
use selvedge_store::pages::PageId;
use selvedge_store::{Error, Result};

/// The paths of one store.
#[derive(Clone, Debug)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// The store of a project, the folder that holds `.ai`.
    pub fn of(project: &Path) -> Self {
        Self { root: project.join(".ai/agent/threads") }
    }

    /// The store with this folder of all threads.
    pub fn at(root: PathBuf) -> Self {
        Self { root }
    }

    /// The folder of all threads.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The file that records the kind and format of the store.
    pub fn store_file(&self) -> PathBuf {
        self.root.join("store.json")
    }

    /// The commit point and index.
    pub fn database(&self) -> PathBuf {
        self.root.join("registry.db")
    }

    /// The search index, which is derived from the logs.
    pub fn search(&self) -> PathBuf {
        self.root.join("search.db")
    }

    /// The folder of locks and positions of effects.
    pub fn effects(&self) -> PathBuf {
        self.root.join("effects")
    }

    /// The folder of the project's files, `.ai`.
    fn project_files(&self) -> &Path {
        self.root.ancestors().nth(2).unwrap_or(&self.root)
    }

    /// The usage records.
    pub fn usage(&self) -> PathBuf {
        self.project_files().join("usage.jsonl")
    }

    /// The folder of all agents.
    pub fn agents(&self) -> PathBuf {
        self.project_files().join("agents")
    }

    /// The vectors of the passages of an agent's threads.
    pub fn embeddings(&self, agent: &AgentId) -> PathBuf {
        self.agents().join(agent.as_str().replace('/', "~")).join("embeddings.jsonl")
    }

    /// Locked by a process while it writes.
    pub fn commit_lock(&self) -> PathBuf {
        self.root.join("commit.lock")
    }

    /// The folder of files that live processes keep locked.
    pub fn owners(&self) -> PathBuf {
        self.root.join("owners")
    }

    /// One such file.
    pub fn owner(&self, owner: &OwnerId) -> PathBuf {
        self.owners().join(owner.as_str().replace('/', "~"))
    }

    /// The folder of the tombstones of deleted threads.
    pub fn tombstones(&self) -> PathBuf {
        self.root.join("tombstones")
    }

    /// The tombstone of one deleted thread.
    pub fn tombstone(&self, thread: &ThreadId) -> PathBuf {
        self.tombstones().join(format!("{}.json", thread.folder()))
    }

    /// A thread's folder.
    pub fn thread(&self, thread: &ThreadId) -> PathBuf {
        self.root.join(thread.folder())
    }

    /// A thread's log.
    pub fn transcript(&self, thread: &ThreadId) -> PathBuf {
        self.thread(thread).join("transcript.jsonl")
    }

    /// A thread's manifest.
    pub fn manifest(&self, thread: &ThreadId) -> PathBuf {
        self.thread(thread).join("thread.json")
    }

    /// The capabilities of a thread.
    pub fn capabilities(&self, thread: &ThreadId) -> PathBuf {
        self.thread(thread).join("capabilities.md")
    }

    /// Where the last part of a thread's page begins.
    pub fn page_start(&self, thread: &ThreadId) -> PathBuf {
        self.thread(thread).join("page.start")
    }

    /// A thread's blobs.
    pub fn blobs(&self, thread: &ThreadId) -> PathBuf {
        self.thread(thread).join("blobs")
    }

    /// One blob.
    pub fn blob(&self, thread: &ThreadId, name: &Digest) -> PathBuf {
        self.blobs(thread).join(name.to_string())
    }
}

impl Layout {
    /// The file of an entry of knowledge, and the folders on the way to it, the outermost first.
    pub(crate) fn knowledge(&self, id: &DirectiveId) -> (Vec<PathBuf>, PathBuf) {
        self.entry(id.as_str())
    }

    /// The same for a part of a thread's page.
    pub(crate) fn page(&self, id: &PageId) -> (Vec<PathBuf>, PathBuf) {
        self.entry(id.as_str())
    }

    fn entry(&self, id: &str) -> (Vec<PathBuf>, PathBuf) {
        let items = self.root.parent().and_then(Path::parent).unwrap_or(Path::new("."));
        let mut folder = items.join("knowledge");
        let mut folders = vec![folder.clone()];
        let mut steps: Vec<&str> = id.split('/').collect();
        let name = steps.pop().unwrap_or_default();
        for step in steps {
            folder = folder.join(step);
            folders.push(folder.clone());
        }
        (folders, folder.join(format!("{name}.md")))
    }
}

/// Whether a name in the folder of all threads belongs to the store, so that it can't be a thread's.
pub fn is_reserved(name: &str) -> bool {
    let starts = ["store.json", "registry.db", "search.db", "commit.lock", "restore.left-out.json"];
    ["owners", "tombstones", "effects"].contains(&name) || starts.iter().any(|start| name.starts_with(start))
}

/// Whether anything exists at `path`, a link included. Failure to check is an error, not absence: the caller would overwrite it.
pub(crate) fn is_there(path: &Path) -> Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        // Nothing can exist below a plain file.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(false),
        Err(source) => Err(Error::Io { what: "check", path: path.to_owned(), source }),
    }
}

/// All entries of a folder, or an error; never a partial list.
pub(crate) fn listed(folder: &Path) -> Result<Vec<fs::DirEntry>> {
    let failed = |source| Error::Io { what: "read", path: folder.to_owned(), source };
    whole(fs::read_dir(folder).map_err(failed)?).map_err(failed)
}

/// All entries, or the first error.
fn whole<T>(entries: impl Iterator<Item = io::Result<T>>) -> io::Result<Vec<T>> {
    entries.collect()
}

/// Refuses anything but a real folder at `path`; absent is fine.
pub fn check_folder(path: &Path) -> Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Ok(true),
        Ok(found) => Err(Error::Unusable {
            what: format!("`{}`", path.display()),
            why: if found.is_symlink() { "it is a symbolic link where a folder must be" } else { "it is not a folder" }
                .to_owned(),
            hint: Some("move it away; Selvedge never writes outside its store".to_owned()),
        }),
        // Nothing can exist below a plain file.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(false),
        Err(source) => Err(Error::Io { what: "check", path: path.to_owned(), source }),
    }
}

/// A path, quoted for a shell.
pub(crate) fn shell_word(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rebuild would leave out the threads that come after the error.
    #[test]
    fn a_listing_that_fails_in_the_middle_is_an_error() {
        let entries = [Ok(1), Err(io::ErrorKind::Other.into()), Ok(3)];
        assert!(whole(entries.into_iter()).is_err());
        assert_eq!(whole([Ok(1), Ok(2)].into_iter()).unwrap(), [1, 2]);
    }
}
