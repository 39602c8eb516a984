//! Files and folders as values: taken from a disk, put on a disk.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Tried;

/// Something with a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// A folder.
    Folder,
    /// A file and its bytes.
    File(Arc<Vec<u8>>),
}

/// Everything below a folder, parents before what is in them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tree(pub BTreeMap<PathBuf, Node>);

impl Tree {
    /// Takes everything below `root`, except what no power cut leaves.
    pub fn take(root: &Path) -> Tried<Self> {
        let mut tree = Self::default();
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(root.join(&folder))? {
                let entry = entry?;
                let path = folder.join(entry.file_name());
                if entry.file_type()?.is_dir() {
                    folders.push(path.clone());
                    tree.0.insert(path, Node::Folder);
                } else if !is_fleeting(&path) {
                    let bytes = fs::read(entry.path())?;
                    tree.0.insert(path, Node::File(Arc::new(bytes)));
                }
            }
        }
        Ok(tree)
    }

    /// Puts everything below `root`, which is made and must not exist.
    pub fn put(&self, root: &Path) -> Tried {
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

/// SQLite's index of its write-ahead log is memory with a name; it is made anew by whoever opens the database first.
pub fn is_fleeting(path: &Path) -> bool {
    path.to_string_lossy().ends_with("-shm")
}
