//! Files and folders as values: read from a disk, and written to one.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::LabResult;

/// A file or a folder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// A folder.
    Folder,
    /// A file and its bytes.
    File(Arc<Vec<u8>>),
}

/// Everything below a folder, parents before their children.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tree(pub BTreeMap<PathBuf, Node>);

impl Tree {
    /// Reads everything below `root`, except what no power failure leaves.
    pub fn take(root: &Path) -> LabResult<Self> {
        let mut tree = Self::default();
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(root.join(&folder))? {
                let entry = entry?;
                let path = folder.join(entry.file_name());
                if entry.file_type()?.is_dir() {
                    folders.push(path.clone());
                    tree.0.insert(path, Node::Folder);
                } else if !is_volatile(&path) {
                    let bytes = fs::read(entry.path())?;
                    tree.0.insert(path, Node::File(Arc::new(bytes)));
                }
            }
        }
        Ok(tree)
    }

    /// Writes everything below `root`, which is created and must not exist.
    pub fn put(&self, root: &Path) -> LabResult {
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700).create(root)?;
        for (path, node) in &self.0 {
            let path = root.join(path);
            match node {
                Node::Folder => builder.create(path)?,
                Node::File(bytes) => {
                    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
                    std::io::Write::write_all(&mut file, bytes)?;
                }
            }
        }
        Ok(())
    }
}

/// Whether a file is SQLite's shared-memory index, which the first process that opens the database creates anew.
pub fn is_volatile(path: &Path) -> bool {
    path.to_string_lossy().ends_with("-shm")
}
