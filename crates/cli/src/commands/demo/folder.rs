//! The folder of the demo.
//!
//! ```text
//! selvedge-demo-1a2b3c/
//!   project/.ai/…    the store, and the directives, agents and tools
//!   project/paid.txt what a tool wrote
//!   user/keys/…      the demo's own key: the user's is not used
//! ```

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use selvedge_model::{Ids, ThreadId};
use selvedge_store::Logs;
use selvedge_store_local::disk::RealDisk;
use selvedge_store_local::system::{SystemClock, SystemIds};
use selvedge_store_local::{Access, LocalStore, Options};

use super::log_steps::broken;
use super::{agent_steps, payday};
use crate::commands::init;
use crate::context::{Context, User, threads_folder};
use crate::error::{Exit, Failure, Result};
use crate::output::{BOLD, paint};
use crate::text::shell_word;

/// The folder of the demo, and state shared by its steps.
pub(crate) struct DemoFolder {
    pub(crate) folder: PathBuf,
    pub(crate) project: PathBuf,
    pub(crate) user: User,
    /// The thread of the agent, once it runs.
    pub(crate) thread: Option<ThreadId>,
    /// This program, to be started again.
    pub(crate) program: PathBuf,
    /// The byte that was flipped.
    pub(crate) flipped: Option<u64>,
}

impl DemoFolder {
    /// Creates the folder, the key, the store and the files of the project.
    pub(crate) fn set(dir: Option<PathBuf>, context: &Context<'_>) -> Result<Self> {
        let name = || format!("selvedge-demo-{}", &SystemIds.hex12()[..6]);
        let folder = context.folder.join(dir.unwrap_or_else(|| PathBuf::from(name())));
        make_empty(&folder)?;
        let folder = fs::canonicalize(&folder).map_err(|error| Failure::io("use", &folder, &error))?;
        let project = folder.join("project");
        make_empty(&project)?;
        let user = User { folder: folder.join("user") };
        init::make(&project, &user)?;
        let program = env::current_exe().map_err(|error| Failure::io("find", Path::new("selvedge"), &error))?;
        for (name, text) in payday::FILES.into_iter().chain(agent_steps::FILES) {
            let file = project.join(name);
            let failed = |error| Failure::io("write", &file, &error);
            fs::create_dir_all(file.parent().unwrap_or(&project))
                .and_then(|()| fs::write(&file, text))
                .map_err(failed)?;
        }
        Ok(Self { folder, project, user, thread: None, program, flipped: None })
    }

    /// The agent's thread.
    pub(crate) fn thread(&self) -> Result<&ThreadId> {
        self.thread.as_ref().ok_or_else(|| broken("the agent has no thread"))
    }

    /// Opens the demo's store with the demo's key.
    pub(crate) fn open(&self, access: Access) -> Result<LocalStore> {
        Ok(LocalStore::open(Options {
            project: self.project.clone(),
            access,
            signer: Some(self.user.signer()?),
            trust: self.user.trust()?,
            clock: Arc::new(SystemClock),
            ids: Arc::new(SystemIds),
            disk: Arc::new(RealDisk),
        })?)
    }

    /// The thread's log.
    pub(crate) fn transcript(&self) -> Result<PathBuf> {
        Ok(threads_folder(&self.project).join(self.thread()?.folder()).join("transcript.jsonl"))
    }

    /// Another process of this program, in this project.
    pub(crate) fn another_process(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env("SELVEDGE_HOME", &self.user.folder).env_remove("SELVEDGE_DIR").env_remove("SELVEDGE_JSON");
        command.arg("-C").arg(&self.project).arg("--json");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Where everything is, and commands to try.
    pub(crate) fn what_next(&self) -> String {
        let home = shell_word(&self.user.folder.display().to_string());
        let project = shell_word(&self.project.display().to_string());
        let program = shell_word(&self.called());
        let start = format!("SELVEDGE_HOME={home} {program} -C {project}");
        // Any unique prefix of an id will do.
        let short = "payday";
        let mut text = format!(
            "\n{} The files are in {}\nTry:\n",
            paint(BOLD, "Everything worked as promised."),
            self.folder.display()
        );
        for command in ["log", "state", "verify --explain"] {
            let (name, flags) = command.split_once(' ').unwrap_or((command, ""));
            text.push_str(format!("  {start} {name} {short} {flags}").trim_end());
            text.push('\n');
        }
        if let Some(check) = self.check_without_us() {
            text.push_str(&check);
        }
        text.push_str(&format!("Then, in a folder of your own:\n  {program} init"));
        text
    }

    /// A command that verifies the newest hash without this program.
    fn check_without_us(&self) -> Option<String> {
        let store = self.open(Access::ReadOnly).ok()?;
        let head = store.head(self.thread().ok()?).ok()?;
        let file = shell_word(&self.transcript().ok()?.display().to_string());
        Some(format!(
            "Or without Selvedge; the hash begins with {}:\n  head -c {} {file} | sha256sum\n",
            head.hash.short(),
            head.bytes
        ))
    }

    /// The command that starts this program: its name, if it is on the PATH.
    fn called(&self) -> String {
        let on_path = env::var_os("PATH").and_then(|path| {
            let mut candidates = env::split_paths(&path).map(|folder| folder.join("selvedge"));
            candidates.find(|candidate| candidate.is_file())
        });
        let same = on_path.and_then(|found| fs::canonicalize(found).ok()) == fs::canonicalize(&self.program).ok();
        if same { "selvedge".to_owned() } else { self.program.display().to_string() }
    }
}

fn make_empty(folder: &Path) -> Result<()> {
    match fs::create_dir(folder) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let is_empty = fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none());
            if is_empty {
                return Ok(());
            }
            let message = format!("`{}` exists and is not an empty folder", folder.display());
            Err(Failure::new(Exit::Usage, "folder_in_use", message).hint("name another folder with `--dir`"))
        }
        Err(error) => Err(Failure::io("create", folder, &error)),
    }
}
