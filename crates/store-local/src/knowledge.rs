//! Entries of knowledge that agents write: `.ai/knowledge/<id>.md`.
//!
//! When [`LocalStore::write_knowledge`] returns, the entry is complete and durable; after a crash before that it is as before. What exists is
//! replaced only if it is signed, intact, and of agents: what a person wrote stays.

use std::io;
use std::path::Path;

use selvedge_log::document::{Comment, DocumentKind, sign_text, verify_text};
use selvedge_log::hash::sha256;
use selvedge_model::Digest;
use selvedge_model::id::DirectiveId;
use selvedge_store::{Error, Result};

use crate::core::{Core, io_error, lock};
use crate::disk;
use crate::layout::check_folder;
use crate::open::LocalStore;

const KIND: DocumentKind = DocumentKind::new("knowledge");
/// The longest entry that is replaced; readers refuse longer ones.
const BYTES_MAX: u64 = 1 << 20;

impl LocalStore {
    /// Signs and writes an entry of knowledge; returns the digest of the file. `is_replaceable` judges the text of an existing entry, which
    /// is signed and intact.
    pub fn write_knowledge(
        &self,
        id: &DirectiveId,
        body: &str,
        is_replaceable: &dyn Fn(&str) -> bool,
    ) -> Result<Digest> {
        let core = &self.core;
        let place = format!(".ai/knowledge/{id}.md");
        let (folders, path) = core.layout.knowledge(id);
        lock(core.writer()?).exclusive(&core.layout, |_| {
            core.check_replaceable(&place, &path, is_replaceable)?;
            for folder in &folders {
                if !check_folder(folder)? {
                    core.disk.make_folder(folder).map_err(io_error("create", folder))?;
                    let parent = folder.parent().unwrap_or(Path::new("."));
                    core.disk.sync_folder(parent).map_err(io_error("sync", parent))?;
                }
            }
            let text = sign_text(KIND, &place, Comment::Html, body, &core.signing()?.signer, core.clock.now());
            disk::replace(&*core.disk, &path, text.as_bytes()).map_err(io_error("write", &path))?;
            Ok(sha256(text.as_bytes()))
        })
    }
}

impl Core {
    fn check_replaceable(&self, place: &str, path: &Path, is_replaceable: &dyn Fn(&str) -> bool) -> Result<()> {
        let refused = |why: String| {
            let hint = "it is not replaced; move it away, or let the agent write under another name".to_owned();
            Err(Error::Unusable { what: format!("`{place}`"), why, hint: Some(hint) })
        };
        let bytes = match disk::read(&*self.disk, path, BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if disk::is_no_file(&error) || error.kind() == io::ErrorKind::FileTooLarge => {
                return refused(error.to_string());
            }
            Err(error) => return Err(io_error("read", path)(error)),
        };
        match verify_text(KIND, place, Comment::Html, &bytes, &self.trust) {
            Ok(verified) if is_replaceable(&verified.value) => Ok(()),
            Ok(_) => refused("a person wrote it".to_owned()),
            Err(error) => refused(format!("{error}")),
        }
    }
}
