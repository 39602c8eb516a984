//! A store in a folder of its own, for the tests inside this crate.

use std::sync::Arc;

use selvedge_log::{Signer, Trust};
use selvedge_model::ThreadId;

use crate::disk::RealDisk;
use crate::system::{SystemClock, SystemIds};
use crate::{Access, LocalStore, Options};

pub(crate) struct House {
    pub(crate) folder: tempfile::TempDir,
    pem: String,
}

impl House {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        LocalStore::init(folder.path(), Arc::new(RealDisk)).unwrap();
        Self { folder, pem: Signer::generate(&SystemIds).to_pem().to_string() }
    }

    /// A store as another process has it: nothing is shared but the files.
    pub(crate) fn open(&self) -> LocalStore {
        let signer = Signer::from_pem(&self.pem).unwrap();
        LocalStore::open(Options {
            project: self.folder.path().to_owned(),
            access: Access::ReadWrite,
            trust: Trust::of(&[signer.public()]),
            signer: Some(signer),
            clock: Arc::new(SystemClock),
            ids: Arc::new(SystemIds),
            disk: Arc::new(RealDisk),
        })
        .unwrap()
    }
}

pub(crate) fn thread(name: &str) -> ThreadId {
    ThreadId::new(name).unwrap()
}
