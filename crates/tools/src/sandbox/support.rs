//! What this machine can enforce, found out by trying it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use super::helper::{ARGUMENT, NOTHING};
use super::plan::{Namespaces, Plan};

/// What a machine can enforce.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Support {
    /// The version of Landlock; 0 if there is none.
    pub landlock: u32,
    /// Whether a process can get namespaces of its own for users, processes and mounts.
    pub namespaces: bool,
    /// The same for the network.
    pub network_namespace: bool,
    /// Whether a temporary folder of bounded size can be mounted.
    pub tmpfs: bool,
    /// Whether the creation of sockets can be filtered.
    pub socket_filter: bool,
}

/// The helper that restricts processes, and what it can do here.
#[derive(Clone, Debug)]
pub struct Sandbox {
    helper: PathBuf,
    support: Arc<OnceLock<Support>>,
}

impl Sandbox {
    /// The sandbox of a helper: a program whose `main` begins with [`helper::answer`](super::helper::answer). What the machine can enforce is
    /// tried when it is needed for the first time.
    pub fn new(helper: impl Into<PathBuf>) -> Self {
        Self { helper: helper.into(), support: Arc::default() }
    }

    /// The same on a machine that can enforce only this.
    pub fn with_support(helper: impl Into<PathBuf>, support: Support) -> Self {
        Self { helper: helper.into(), support: Arc::new(support.into()) }
    }

    /// The helper.
    pub fn helper(&self) -> &Path {
        &self.helper
    }

    /// What this machine can enforce.
    pub fn support(&self) -> &Support {
        self.support.get_or_init(|| try_all(&self.helper))
    }
}

fn try_all(helper: &Path) -> Support {
    let works = |plan: &Plan| runs(helper, plan);
    let namespaces = works(&Plan { namespaces: Some(Namespaces { network: false }), ..Plan::default() });
    let temporary = super::temporary::Folder::make(Path::new("/tmp"), "check").ok();
    let tmpfs = namespaces
        && temporary.as_ref().is_some_and(|folder| {
            let temporary = Some(super::plan::Tmpfs { path: folder.path().to_owned(), bytes: 1 << 20 });
            works(&Plan { namespaces: Some(Namespaces { network: false }), temporary, ..Plan::default() })
        });
    Support {
        landlock: landlock(helper),
        namespaces,
        network_namespace: namespaces
            && works(&Plan { namespaces: Some(Namespaces { network: true }), ..Plan::default() }),
        tmpfs,
        socket_filter: works(&Plan { socket_filter: true, ..Plan::default() }),
    }
}

/// Whether the helper can apply a plan: it starts a program that does nothing.
fn runs(helper: &Path, plan: &Plan) -> bool {
    let mut command = Command::new(helper);
    command.args([ARGUMENT, "run", &plan.to_argument()]).arg(helper).args([ARGUMENT, NOTHING]);
    let status = command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// The version of Landlock, as the helper finds it.
fn landlock(helper: &Path) -> u32 {
    let output = Command::new(helper).args([ARGUMENT, "landlock"]).env_clear().stdin(Stdio::null()).output();
    output.ok().and_then(|output| String::from_utf8(output.stdout).ok()?.trim().parse().ok()).unwrap_or_default()
}
