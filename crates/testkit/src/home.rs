//! A store and its keys in one folder, so that one prefix names everything that a process may change.
//!
//! ```text
//! ROOT/
//! ├── project/   the store, in `.ai`
//! ├── keys/      who signs, whose signatures count, who took over from whom
//! └── …          what a scenario needs besides: a backup, a file to import
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use selvedge_log::keychain::Folders;
use selvedge_log::keys::KeyFolder;
use selvedge_log::{KeyChain, Signer, Trust};
use selvedge_model::Clock;
use selvedge_store::conformance::support::{ScriptedClock, SeededIds};
use selvedge_store_local::disk::RealDisk;
use selvedge_store_local::{Access, LocalStore, Options, Rebuild};

use crate::Tried;

/// A folder with a store and its keys.
#[derive(Clone, Debug)]
pub struct Home {
    root: PathBuf,
    ids: SeededIds,
    clock: ScriptedClock,
}

impl Home {
    /// What lies in `root`, with chance from `seed`: two who have the same folder at once need two seeds.
    pub fn at(root: &Path, seed: u64) -> Self {
        Self { root: root.to_owned(), ids: SeededIds::new(seed), clock: ScriptedClock::default() }
    }

    /// A fresh store and a key, in an empty folder.
    pub fn make(root: &Path, seed: u64) -> Tried<Self> {
        let home = Self::at(root, seed);
        let signer = KeyFolder::create(&home.keys().signing(), &home.ids)?;
        Trust::add(&home.keys().trusted(), &signer.public(), "Ada", home.clock.now())?;
        std::fs::create_dir_all(home.project())?;
        LocalStore::init(&home.project(), Arc::new(RealDisk))?;
        Ok(home)
    }

    /// The folder of everything.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder that holds `.ai`.
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

    /// Chance.
    pub fn ids(&self) -> &SeededIds {
        &self.ids
    }

    /// The clock.
    pub fn clock(&self) -> &ScriptedClock {
        &self.clock
    }

    /// Whose signatures count.
    pub fn trust(&self) -> Tried<Trust> {
        Ok(Trust::load(&self.keys().trusted())?)
    }

    /// Who signs, with everyone it took over from.
    pub fn signer(&self) -> Tried<Signer> {
        let signer = KeyFolder::load(&self.keys().signing())?;
        let chain = KeyChain::load(&self.keys().chain(), &self.trust()?)?;
        let before = chain.predecessors(&signer.fingerprint());
        Ok(signer.succeeding(before))
    }

    /// Opens the store to write.
    pub fn open(&self) -> Tried<LocalStore> {
        Ok(LocalStore::open(self.options(Access::ReadWrite)?)?)
    }

    /// Opens the store to read.
    pub fn read_only(&self) -> Tried<LocalStore> {
        Ok(LocalStore::open(self.options(Access::ReadOnly)?)?)
    }

    /// How the store is opened.
    pub fn options(&self, access: Access) -> Tried<Options> {
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

    /// How the database is rebuilt.
    pub fn rebuild(&self) -> Tried<Rebuild> {
        Ok(Rebuild {
            project: self.project(),
            trust: self.trust()?,
            signer: Some(self.signer()?),
            disk: Arc::new(RealDisk),
        })
    }
}
