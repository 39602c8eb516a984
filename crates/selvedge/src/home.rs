//! The folders that Selvedge is opened on: the project, and the keys.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use selvedge_log::keychain::Folders;
use selvedge_log::keychain::rotate::retired;
use selvedge_log::keys::{KeyError, KeyFolder};
use selvedge_log::trust::Status;
use selvedge_log::{KeyChain, Signer, Trust};
use selvedge_model::{Clock, Kind};
use selvedge_store::Backend;
use selvedge_store_local::disk::RealDisk;
use selvedge_store_local::system::{SystemClock, SystemIds};
use selvedge_store_local::{Access, LocalStore, Options};

use crate::error::{Error, Result};

/// The folder of the keys in a project that belongs to one program.
const OWN: &str = ".selvedge";
/// The name under which the own key is trusted.
const OWNER: &str = "self";

/// The folders that Selvedge is opened on.
pub(crate) struct Home {
    pub(crate) project: PathBuf,
    pub(crate) folder: PathBuf,
    /// The store, if it is not in the project's folder.
    pub(crate) server: Option<Server>,
}

/// A store on a server.
#[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "no server can be named"))]
pub(crate) struct Server {
    pub(crate) address: String,
    pub(crate) password: Option<String>,
}

impl Home {
    /// Finds the folders and creates what is missing, unless read-only.
    pub(crate) fn of(project: &Path, home: Option<&Path>, server: Option<Server>, is_read_only: bool) -> Result<Self> {
        let project = if project.as_os_str().is_empty() { Path::new(".") } else { project };
        if !is_read_only {
            fs::create_dir_all(project).map_err(|error| Error::io("create", project, error))?;
        }
        let project = fs::canonicalize(project).map_err(|error| Error::io("open", project, error))?;
        let folder = match home {
            Some(home) => std::path::absolute(home).map_err(|error| Error::io("use", home, error))?,
            None => project.join(OWN),
        };
        let found = Self { project, folder, server };
        found.check_apart()?;
        if !is_read_only {
            found.make(home.is_none())?;
        }
        Ok(found)
    }

    /// Refuses keys inside the project: a project can't vouch for itself.
    fn check_apart(&self) -> Result<()> {
        let real = fs::canonicalize(&self.folder).unwrap_or_else(|_| self.folder.clone());
        if !real.starts_with(self.project.join(".ai")) {
            return Ok(());
        }
        let message = format!("the folder of the keys, `{}`, is inside the project's own `.ai`", self.folder.display());
        Err(Error::new(Kind::Denied, "keys_in_project", message).with_hint("set `home` to a folder outside of it"))
    }

    fn keys(&self) -> Folders {
        Folders::below(self.folder.join("keys"))
    }

    /// Creates the key and the store, if there is neither.
    fn make(&self, is_own: bool) -> Result<()> {
        let signing = self.keys().signing();
        let threads = self.project.join(".ai").join("agent").join("threads");
        let signer = match KeyFolder::load(&signing) {
            Err(error @ KeyError::Absent { .. }) if threads.exists() && self.server.is_none() => {
                let hint = "the threads here were signed with another key: set `home` to its folder";
                return Err(Error::from(error).with_hint(hint));
            }
            Err(KeyError::Absent { .. }) => match KeyFolder::create(&signing, &SystemIds) {
                // Another process was faster; its key is complete.
                Err(KeyError::Exists { .. }) => KeyFolder::load(&signing)?,
                created => created?,
            },
            loaded => loaded?,
        };
        if is_own {
            self.ignore()?;
        }
        if Trust::load(&self.keys().trusted())?.status(&signer.fingerprint()).is_none() {
            Trust::add(&self.keys().trusted(), &signer.public(), OWNER, SystemClock.now())?;
        }
        match &self.server {
            None => _ = LocalStore::init(&self.project, Arc::new(RealDisk))?,
            #[cfg(feature = "postgres")]
            Some(Server { address, password }) => {
                selvedge_store_postgres::PostgresStore::init(address, password.as_deref(), &SystemIds)?;
            }
            #[cfg(not(feature = "postgres"))]
            Some(_) => {}
        }
        Ok(())
    }

    /// Keeps the keys out of version control.
    fn ignore(&self) -> Result<()> {
        let path = self.folder.join(".gitignore");
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(mut file) => file.write_all(b"*\n").map_err(|error| Error::io("write", &path, error)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(Error::io("write", &path, error)),
        }
    }

    /// The keys whose signatures count.
    pub(crate) fn trust(&self) -> Result<Trust> {
        let trust = Trust::load(&self.keys().trusted())?;
        let chain = KeyChain::load(&self.keys().chain(), &trust).unwrap_or_default();
        Ok(trust.with_rotation_statements(chain.rotation_statements()))
    }

    /// The signing key and its predecessors.
    fn signer(&self, trust: &Trust) -> Result<Signer> {
        let signer = KeyFolder::load(&self.keys().signing())?;
        let fingerprint = signer.fingerprint();
        if trust.status(&fingerprint) == Some(Status::Revoked) {
            let message =
                format!("the signing key {} is revoked: none of its signatures is accepted", fingerprint.short());
            let hint = "create a new one with `selvedge keys rotate`";
            return Err(Error::new(Kind::Denied, "key_revoked", message).with_hint(hint));
        }
        let chain = KeyChain::load(&self.keys().chain(), trust)?;
        let predecessors = chain.predecessors(&fingerprint);
        let mut former = Vec::new();
        for key in &predecessors {
            former.extend(retired(&self.keys(), key)?.map(|key| key.seal_key()));
        }
        Ok(signer.succeeding(predecessors).opening(former).wary(chain.has_gap_behind(&fingerprint)))
    }
}

/// Opens the store, and says what opening it found. It is closed when its last user is dropped.
pub(crate) fn open_store(home: &Home, access: Access, trust: Trust) -> Result<(Arc<dyn Backend>, Vec<String>)> {
    let signer = match access {
        Access::ReadWrite => Some(home.signer(&trust)?),
        // Rows are checked wherever there is a key to check them with.
        Access::ReadOnly => home.signer(&trust).ok(),
    };
    #[cfg(feature = "postgres")]
    if let Some(Server { address, password }) = &home.server {
        let store = selvedge_store_postgres::PostgresStore::open(selvedge_store_postgres::Options {
            address: address.clone(),
            password: password.clone(),
            signer,
            trust,
            clock: Arc::new(SystemClock),
            ids: Arc::new(SystemIds),
            lease: selvedge_store_postgres::LEASE,
            host: fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned(),
        })?;
        let notices = store.problems().take();
        return Ok((Arc::new(store), notices));
    }
    let options = Options {
        project: home.project.clone(),
        access,
        signer,
        trust,
        clock: Arc::new(SystemClock),
        ids: Arc::new(SystemIds),
        disk: Arc::new(RealDisk),
    };
    let store = LocalStore::open(options)?.closing_itself();
    let notices = store.opened().notices.clone();
    Ok((Arc::new(store), notices))
}
