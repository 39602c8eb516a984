//! Where a command works: which project, whose keys, which store.
//!
//! - The project is the nearest folder, upwards from where the command was started or from `-C`, that holds
//!   `.ai/agent/threads`.
//! - Keys and trust belong to the user. Nothing inside a project decides what is trusted.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs};

use selvedge_log::keychain::Folders;
use selvedge_log::keychain::rotate::retired;
use selvedge_log::keys::{KeyError, KeyFolder};
use selvedge_log::trust::Status;
use selvedge_log::{KeyChain, Trust};
use selvedge_model::Digest;
use selvedge_store::Backend;
use selvedge_store_local::disk::RealDisk;
use selvedge_store_local::system::{SystemClock, SystemIds};
use selvedge_store_local::{Access, LocalStore, Opened, Options, Problems};

use crate::args::Global;
use crate::error::{Exit, Failure, Result};
use crate::output::Output;
use crate::text::{clean, count, key};

/// How long to wait for the threads of a dropped engine to release its store.
const LAST_MOMENT: Duration = Duration::from_millis(500);

/// Where a command works.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) output: &'a Output,
    /// The folder where the command was started, or that `-C` names.
    pub(crate) folder: PathBuf,
    /// The bytes of stdin: it can be read only once, and a command may be run again.
    stdin: OnceCell<Vec<u8>>,
    /// What the stores that were opened find amiss, and what of that was said.
    problems: RefCell<(Vec<Problems>, BTreeSet<String>)>,
}

impl<'a> Context<'a> {
    /// The context for these options.
    pub(crate) fn new(global: &Global, output: &'a Output) -> Result<Self> {
        let asked = global.folder.clone().unwrap_or_else(|| PathBuf::from("."));
        let folder = fs::canonicalize(&asked).map_err(|error| Failure::io("work in", &asked, &error))?;
        if !folder.is_dir() {
            return Err(Failure::usage(format!("`{}` is not a folder", asked.display())));
        }
        Ok(Self { output, folder, stdin: OnceCell::new(), problems: RefCell::default() })
    }

    /// The bytes of stdin, at most this many; the same on each call.
    pub(crate) fn stdin(&self, bytes_max: u64) -> Result<&[u8]> {
        if let Some(read) = self.stdin.get() {
            return Ok(read);
        }
        let mut bytes = Vec::new();
        let read = io::stdin().lock().take(bytes_max).read_to_end(&mut bytes);
        read.map_err(|error| Failure::io("read", Path::new("stdin"), &error))?;
        Ok(self.stdin.get_or_init(|| bytes))
    }

    /// Whether a command failed only because the key was rotated after it was read. A refused command left nothing behind, so it
    /// can be run again with the new keys.
    pub(crate) fn is_overtaken_by_rotation(&self, failure: &Failure) -> bool {
        let named = |name: &str| failure.details.get(name).and_then(|key| key.as_str()?.parse::<Digest>().ok());
        let Ok(user) = User::find() else { return false };
        match (failure.code, named("ours"), named("key")) {
            ("wrong_signer" | "row_unsealed", Some(ours), _) => {
                user.signer().is_ok_and(|signer| signer.fingerprint() != ours)
            }
            // Output that was shown can't be taken back.
            ("untrusted_key", _, Some(key)) if !self.output.has_written() => {
                user.trust().is_ok_and(|trust| trust.key(&key).is_some())
            }
            _ => false,
        }
    }

    /// The project around the folder, if there is one.
    pub(crate) fn find_project(&self) -> Option<PathBuf> {
        // Even a dangling link counts: opening it reports the problem.
        let holds_threads = |folder: &&Path| threads_folder(folder).symlink_metadata().is_ok();
        self.folder.ancestors().find(holds_threads).map(Path::to_owned)
    }

    /// The project around the folder.
    pub(crate) fn project(&self) -> Result<PathBuf> {
        self.find_project().ok_or_else(|| {
            let message = format!("there is no store in `{}` or any folder above it", self.folder.display());
            Failure::new(Exit::NotFound, "no_store", message).hint("`selvedge init` creates one")
        })
    }

    /// Opens the store of the project around the folder, and reports what a crash had left there.
    pub(crate) fn open(&self, access: Access) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(self.open_local(access)?))
    }

    /// The same for commands on the files of a local store.
    pub(crate) fn open_local(&self, access: Access) -> Result<LocalStore> {
        let project = self.project()?;
        let user = User::find()?;
        user.check_apart_from(&project)?;
        let signer = match access {
            Access::ReadWrite => Some(user.signer()?),
            // What is shown is what people decide on, so rows are checked wherever there is a key to check them with.
            Access::ReadOnly => user.signer().ok(),
        };
        let options = Options { access, signer, ..self.options_to_look(project, user.trust()?) };
        // A command that is refused afterwards must not look like a crash.
        let store = LocalStore::open(options)?.closing_itself();
        self.tell_of(store.opened());
        self.problems.borrow_mut().0.push(store.problems());
        Ok(store)
    }

    /// Opens the store of the project around the folder read-only, without checking the seals of its rows.
    pub(crate) fn open_unchecked(&self) -> Result<Arc<dyn Backend>> {
        let options = self.options_to_look(self.project()?, User::find()?.trust()?);
        Ok(Arc::new(LocalStore::open(options)?))
    }

    /// Opens the store of the project around the folder read-only, with the signing key, if there is one, for copies that are
    /// written elsewhere.
    pub(crate) fn open_to_copy(&self) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(self.open_local_to_copy()?))
    }

    /// The same for commands that copy the files of a local store.
    pub(crate) fn open_local_to_copy(&self) -> Result<LocalStore> {
        let project = self.project()?;
        let user = User::find()?;
        user.check_apart_from(&project)?;
        let options = self.options_to_look(project, user.trust()?);
        let store = LocalStore::open(Options { signer: user.signer().ok(), ..options })?;
        self.problems.borrow_mut().0.push(store.problems());
        Ok(store)
    }

    /// Says what the stores that were opened have found amiss, each finding once. Every command ends with it.
    pub(crate) fn tell_problems(&self) {
        let (stores, said) = &mut *self.problems.borrow_mut();
        for found in stores.iter().flat_map(Problems::take) {
            if said.insert(found.clone()) {
                self.output.say(clean(&found));
            }
        }
    }

    /// Opens the store of a project read-only, with these keys, without notices.
    pub(crate) fn open_to_look(&self, project: &Path, trust: &Trust) -> selvedge_store::Result<Arc<dyn Backend>> {
        Ok(Arc::new(LocalStore::open(self.options_to_look(project.to_owned(), trust.clone()))?))
    }

    /// The options to open a store read-only.
    pub(crate) fn options_to_look(&self, project: PathBuf, trust: Trust) -> Options {
        Options {
            project,
            access: Access::ReadOnly,
            signer: None,
            trust,
            clock: Arc::new(SystemClock),
            ids: Arc::new(SystemIds),
            disk: Arc::new(RealDisk),
        }
    }

    fn tell_of(&self, opened: &Opened) {
        if opened.drained_bytes > 0 {
            let bytes = count(opened.drained_bytes, "committed byte");
            let threads = count(opened.drained_threads, "transcript");
            let found = format!("{bytes} were written to {threads}");
            self.output.say(format!("recovered after a crash: {found}; nothing acknowledged is lost"));
        }
        for notice in &opened.notices {
            self.output.say(notice);
        }
    }

    /// Closes a store that was written to and that nothing else uses, so that the transcripts are complete. Commits stay committed
    /// if this fails, so a failure is a notice and not an error.
    pub(crate) fn close(&self, mut store: Arc<dyn Backend>) {
        let until = Instant::now() + LAST_MOMENT;
        let left = loop {
            match Arc::get_mut(&mut store) {
                Some(store) => break store.shut_down(),
                None if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
                None => return,
            }
        };
        if let Err(error) = left {
            self.output.say(format!("everything is committed, but the transcripts could not be synced yet: {error}"));
        }
    }
}

/// The folder of all threads of a project.
pub(crate) fn threads_folder(project: &Path) -> PathBuf {
    project.join(".ai").join("agent").join("threads")
}

/// The user's Selvedge home: keys, items, configuration.
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
            Failure::new(Exit::NotFound, "home_not_found", "there is no home folder to store keys in")
                .hint("set SELVEDGE_HOME to a folder of your own")
        })
    }

    /// The folders of the user's keys.
    pub(crate) fn keys(&self) -> Folders {
        Folders::below(self.folder.join("keys"))
    }

    /// The folder of the signing key.
    pub(crate) fn signing(&self) -> PathBuf {
        self.keys().signing()
    }

    /// The folder of the trusted keys.
    pub(crate) fn trusted(&self) -> PathBuf {
        self.keys().trusted()
    }

    /// The signing key and its predecessors. The key is read first: its rotation was recorded before it.
    pub(crate) fn signer(&self) -> Result<selvedge_log::Signer> {
        let signer = KeyFolder::load(&self.signing()).map_err(|error| self.without_key(error))?;
        let trust = self.trust()?;
        let fingerprint = signer.fingerprint();
        if trust.status(&fingerprint) == Some(Status::Revoked) {
            let message =
                format!("your signing key {} is revoked: none of its signatures is accepted", fingerprint.short());
            let failure = Failure::new(Exit::NotAllowed, "key_revoked", message);
            let again = format!("`selvedge keys trust --again {}`", fingerprint.short());
            return Err(failure
                .hint(format!("`selvedge keys rotate` creates a new one; if it was revoked by mistake: {again}")));
        }
        let chain = KeyChain::load(&self.keys().chain(), &trust)?;
        let predecessors = chain.predecessors(&fingerprint);
        let mut former = Vec::new();
        for key in &predecessors {
            let kept = retired(&self.keys(), key).map_err(|error| Failure::of(&error))?;
            former.extend(kept.map(|key| key.seal_key()));
        }
        Ok(signer.succeeding(predecessors).opening(former).wary(chain.has_gap_behind(&fingerprint)))
    }

    /// The failure without a signing key; if there was one once, the hint says what that means.
    pub(crate) fn without_key(&self, error: KeyError) -> Failure {
        let is_absent = matches!(error, KeyError::Absent { .. });
        let failure = Failure::from(error);
        let trust = self.trust().unwrap_or_default();
        let known: Vec<_> = trust.iter().map(|(fingerprint, _)| key(fingerprint, &trust)).take(3).collect();
        if known.is_empty() || !is_absent {
            return failure;
        }
        failure.hint(format!(
            "if you had one that is lost (you trust {}), its threads stay readable and verifiable, but can't be \
             continued: restore it from a copy, or create a new one for new threads with `selvedge init`",
            known.join(", ")
        ))
    }

    /// The known key whose fingerprint has this prefix.
    pub(crate) fn resolve_key(&self, prefix: &str) -> Result<Digest> {
        let trust = self.trust()?;
        let begins = |known: &&Digest| !prefix.is_empty() && known.to_string().starts_with(&prefix.to_lowercase());
        let found: Vec<Digest> = trust.iter().map(|(known, _)| known).filter(begins).copied().collect();
        match found.as_slice() {
            [one] => Ok(*one),
            [] => {
                let failure =
                    Failure::new(Exit::NotFound, "key_not_found", format!("no known key begins with `{prefix}`"));
                Err(failure.hint("`selvedge keys list` lists the known keys"))
            }
            many => {
                let candidates: Vec<String> = many.iter().take(5).map(Digest::to_string).collect();
                let message = format!("`{prefix}` matches more than one key: {}", candidates.join(", "));
                let failure = Failure::new(Exit::NotFound, "ambiguous", message).detail("candidates", candidates);
                Err(failure.hint("type more of the fingerprint"))
            }
        }
    }

    /// The trusted keys, with their rotations for exports. An invalid chain of keys is an error for a signer, and does not prevent reading.
    pub(crate) fn trust(&self) -> Result<Trust> {
        let trust = Trust::load(&self.trusted())?;
        let chain = KeyChain::load(&self.keys().chain(), &trust).unwrap_or_default();
        Ok(trust.with_rotation_statements(chain.rotation_statements()))
    }

    /// Refuses keys inside the project.
    pub(crate) fn check_apart_from(&self, project: &Path) -> Result<()> {
        let real = fs::canonicalize(&self.folder).unwrap_or_else(|_| self.folder.clone());
        let inside = project.join(".ai");
        if !real.starts_with(&inside) {
            return Ok(());
        }
        let message =
            format!("the folder of your keys, `{}`, is inside the project's own `.ai`", self.folder.display());
        let failure = Failure::new(Exit::NotAllowed, "keys_in_project", message);
        Err(failure.hint("the project could replace them there: set SELVEDGE_HOME to a folder outside of it"))
    }
}
