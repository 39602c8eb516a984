//! Where a command works: which project, whose keys, which store.
//!
//! - The project is the nearest folder, upwards from where the command was started or from `-C`, that holds
//!   `.ai/agent/threads`.
//! - Keys and trust belong to the user. Nothing inside a project is ever read to decide what is believed: a project can't
//!   vouch for itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, fs};

use selvedge_log::Trust;
use selvedge_log::keys::KeyFolder;
use selvedge_store_local::disk::RealDisk;
use selvedge_store_local::system::{SystemClock, SystemIds};
use selvedge_store_local::{Access, LocalStore, Opened, Options};

use crate::args::Global;
use crate::error::{Exit, Failure, Result};
use crate::output::Output;
use crate::text::count;

/// Where a command works.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) output: &'a Output,
    /// Where the command was started, or what `-C` says.
    pub(crate) folder: PathBuf,
}

impl<'a> Context<'a> {
    /// The context that the flags ask for.
    pub(crate) fn new(global: &Global, output: &'a Output) -> Result<Self> {
        let asked = global.folder.clone().unwrap_or_else(|| PathBuf::from("."));
        let folder = fs::canonicalize(&asked).map_err(|error| Failure::io("work in", &asked, &error))?;
        if !folder.is_dir() {
            return Err(Failure::usage(format!("`{}` is not a folder", asked.display())));
        }
        Ok(Self { output, folder })
    }

    /// The project around the folder, if there is one.
    pub(crate) fn find_project(&self) -> Option<PathBuf> {
        // Whatever stands there counts, even a dangling link: opening it will say what is wrong with it.
        let holds_threads = |folder: &&Path| threads_folder(folder).symlink_metadata().is_ok();
        self.folder.ancestors().find(holds_threads).map(Path::to_owned)
    }

    /// The project around the folder.
    pub(crate) fn project(&self) -> Result<PathBuf> {
        self.find_project().ok_or_else(|| {
            let message = format!("there are no threads in `{}` or any folder above it", self.folder.display());
            Failure::new(Exit::NotFound, "no_store", message).hint("make a place for them with `selvedge init`")
        })
    }

    /// Opens the store of the project around the folder, and says what a crash had left there.
    pub(crate) fn open(&self, access: Access) -> Result<LocalStore> {
        let project = self.project()?;
        let user = User::find()?;
        user.check_apart_from(&project)?;
        let signer = match access {
            Access::ReadWrite => Some(user.signer()?),
            Access::ReadOnly => None,
        };
        let store = LocalStore::open(Options {
            project,
            access,
            signer,
            trust: user.trust()?,
            clock: Arc::new(SystemClock),
            ids: Arc::new(SystemIds),
            disk: Arc::new(RealDisk),
        })?;
        self.tell_of(store.opened());
        Ok(store)
    }

    fn tell_of(&self, opened: &Opened) {
        if opened.drained_bytes > 0 {
            let (bytes, threads) =
                (count(opened.drained_bytes, "committed byte"), count(opened.drained_threads, "transcript"));
            let found = format!("{bytes} were still to be written to {threads}, and now are");
            self.output.say(format!("after a crash: {found}; nothing acknowledged is lost"));
        }
        for notice in &opened.notices {
            self.output.say(notice);
        }
    }

    /// Closes a store that was written to, so that the transcripts alone hold everything. What was committed stays
    /// committed whatever happens here, so trouble is told and not an error.
    pub(crate) fn close(&self, store: LocalStore) {
        if let Err(error) = store.close() {
            self.output.say(format!("committed and safe, but the transcripts could not be synced yet: {error}"));
        }
    }
}

/// The folder of all threads of a project.
pub(crate) fn threads_folder(project: &Path) -> PathBuf {
    project.join(".ai").join("agent").join("threads")
}

/// The folder of the user's keys.
#[derive(Debug)]
pub(crate) struct User {
    pub(crate) folder: PathBuf,
}

impl User {
    /// Finds the folder: `SELVEDGE_HOME`, or `selvedge` below `XDG_CONFIG_HOME` or `~/.config`.
    pub(crate) fn find() -> Result<Self> {
        let named = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(home) = named("SELVEDGE_HOME") {
            let folder = std::path::absolute(&home).map_err(|error| Failure::io("use", &home, &error))?;
            return Ok(Self { folder });
        }
        // The XDG specification says that relative paths are to be ignored.
        let config = named("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
        let config =
            config.or_else(|| env::home_dir().filter(|home| home.is_absolute()).map(|home| home.join(".config")));
        config.map(|config| Self { folder: config.join("selvedge") }).ok_or_else(|| {
            Failure::new(Exit::NotFound, "no_home", "there is no home folder to keep keys in")
                .hint("set SELVEDGE_HOME to a folder of your own")
        })
    }

    /// The folder of the signing key.
    pub(crate) fn signing(&self) -> PathBuf {
        self.folder.join("keys").join("signing")
    }

    /// The folder of the trusted keys.
    pub(crate) fn trusted(&self) -> PathBuf {
        self.folder.join("keys").join("trusted")
    }

    /// The key to sign with.
    pub(crate) fn signer(&self) -> Result<selvedge_log::Signer> {
        Ok(KeyFolder::load(&self.signing())?)
    }

    /// The keys whose signatures count.
    pub(crate) fn trust(&self) -> Result<Trust> {
        Ok(Trust::load(&self.trusted())?)
    }

    /// Refuses keys that came with the project.
    pub(crate) fn check_apart_from(&self, project: &Path) -> Result<()> {
        let real = fs::canonicalize(&self.folder).unwrap_or_else(|_| self.folder.clone());
        let inside = project.join(".ai");
        if !real.starts_with(&inside) {
            return Ok(());
        }
        let message =
            format!("the folder of your keys, `{}`, lies inside the project's own `.ai`", self.folder.display());
        let failure = Failure::new(Exit::NotAllowed, "keys_in_project", message);
        Err(failure.hint("a project can't vouch for itself: set SELVEDGE_HOME to a folder elsewhere"))
    }
}
