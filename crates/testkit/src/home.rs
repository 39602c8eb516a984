//! A store and its keys in one folder, so that one path prefix covers everything that a process may change.
//!
//! ```text
//! ROOT/
//! ├── project/   the store, in `.ai`
//! ├── keys/      the signing key, the trusted keys, the chain of keys
//! └── …          what else a scenario needs: a backup, a file to import
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use selvedge_log::keychain::Folders;
use selvedge_log::keychain::rotate::retired;
use selvedge_log::keys::KeyFolder;
use selvedge_log::{KeyChain, Signer, Trust};
use selvedge_model::Clock;
use selvedge_store::conformance::support::{ScriptedClock, SeededIds};
use selvedge_store_local::disk::RealDisk;
use selvedge_store_local::{Access, LocalStore, Options, Rebuild};

use crate::LabResult;

/// A folder with a store and its keys.
#[derive(Clone, Debug)]
pub struct Home {
    root: PathBuf,
    ids: SeededIds,
    clock: ScriptedClock,
}

impl Home {
    /// The home in `root`, with random numbers from `seed`: two users of the same folder at once need two seeds.
    pub fn at(root: &Path, seed: u64) -> Self {
        Self { root: root.to_owned(), ids: SeededIds::new(seed), clock: ScriptedClock::default() }
    }

    /// Creates a new store and a key, in an empty folder.
    pub fn make(root: &Path, seed: u64) -> LabResult<Self> {
        let home = Self::at(root, seed);
        let signer = KeyFolder::create(&home.keys().signing(), &home.ids)?;
        Trust::add(&home.keys().trusted(), &signer.public(), "Ada", home.clock.now())?;
        std::fs::create_dir_all(home.project())?;
        LocalStore::init(&home.project(), Arc::new(RealDisk))?;
        Ok(home)
    }

    /// The folder of the home.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder that contains `.ai`.
    pub fn project(&self) -> PathBuf {
        self.root.join("project")
    }

    /// The folder of all threads.
    pub fn threads(&self) -> PathBuf {
        self.project().join(".ai/agent/threads")
    }

    /// The folders of the keys.
    pub fn keys(&self) -> Folders {
        Folders::below(self.root.join("keys"))
    }

    /// The source of random numbers.
    pub fn ids(&self) -> &SeededIds {
        &self.ids
    }

    /// The clock.
    pub fn clock(&self) -> &ScriptedClock {
        &self.clock
    }

    /// The trusted keys.
    pub fn trust(&self) -> LabResult<Trust> {
        Ok(Trust::load(&self.keys().trusted())?)
    }

    /// The signing key, with its predecessors and their seal keys.
    pub fn signer(&self) -> LabResult<Signer> {
        let signer = KeyFolder::load(&self.keys().signing())?;
        let chain = KeyChain::load(&self.keys().chain(), &self.trust()?)?;
        let before = chain.predecessors(&signer.fingerprint());
        let mut former = Vec::new();
        for key in &before {
            former.extend(retired(&self.keys(), key)?.map(|key| key.seal_key()));
        }
        Ok(signer.succeeding(before).opening(former))
    }

    /// Opens the store for writing.
    pub fn open(&self) -> LabResult<LocalStore> {
        Ok(LocalStore::open(self.options(Access::ReadWrite)?)?)
    }

    /// Opens the store for reading.
    pub fn read_only(&self) -> LabResult<LocalStore> {
        Ok(LocalStore::open(self.options(Access::ReadOnly)?)?)
    }

    /// The options for opening the store.
    pub fn options(&self, access: Access) -> LabResult<Options> {
        Ok(Options {
            project: self.project(),
            access,
            signer: Some(self.signer()?),
            trust: self.trust()?,
            clock: Arc::new(self.clock.clone()),
            ids: Arc::new(self.ids.clone()),
            disk: Arc::new(RealDisk),
        })
    }

    /// The options for rebuilding the database.
    pub fn rebuild(&self) -> LabResult<Rebuild> {
        Ok(Rebuild {
            project: self.project(),
            trust: self.trust()?,
            signer: Some(self.signer()?),
            disk: Arc::new(RealDisk),
        })
    }
}
