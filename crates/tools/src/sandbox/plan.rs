//! From a declaration, and what the machine can do, to exact restrictions and the level they amount to.

use std::path::{Path, PathBuf};

use selvedge_model::tool::{ReachedLevel, SandboxLevel, SandboxReached, SandboxSpec};
use serde::{Deserialize, Serialize};

use super::helper::ARGUMENT;
use super::support::{Sandbox, Support};
use super::temporary::Folder;

/// Where the system's programs and their files are. What does not exist is left out.
const SYSTEM: [&str; 10] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/proc", "/run/systemd/resolve"];
/// Devices that lead nowhere else.
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
/// From this version on, Landlock stops a file from being cut.
const LANDLOCK_FILES: u32 = 3;
/// From these on it restricts TCP, and signals.
const LANDLOCK_TCP: u32 = 4;
const LANDLOCK_SIGNALS: u32 = 6;

/// Exactly what the helper applies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    /// The version of Landlock to apply; 0 for none.
    pub(super) landlock: u32,
    pub(super) read: Vec<PathBuf>,
    pub(super) write: Vec<PathBuf>,
    /// Whether Landlock stops TCP.
    pub(super) no_tcp: bool,
    pub(super) namespaces: Option<Namespaces>,
    /// Whether no socket can be created.
    pub(super) socket_filter: bool,
    pub(super) temporary: Option<Tmpfs>,
    pub(super) limits: Limits,
}

/// Namespaces of users, processes and mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Namespaces {
    /// Whether the network has one, too.
    pub(super) network: bool,
}

/// A file system in memory, mounted on an existing folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tmpfs {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

/// Limits of resources, each for one process but the number of processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Limits {
    pub(super) memory: Option<u64>,
    pub(super) file: Option<u64>,
    pub(super) processor: Option<u64>,
    /// Counted in the namespace only, so there is none without.
    pub(super) processes: Option<u64>,
}

impl Plan {
    pub(super) fn to_argument(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// A program that is started in a sandbox.
#[derive(Debug)]
pub(crate) struct Sandboxed {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    /// What is added to its environment.
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) reached: SandboxReached,
    /// Kept until the program has ended.
    pub(crate) temporary: Option<Folder>,
}

impl Sandbox {
    /// How much of a declaration is enforced here.
    pub fn reached(&self, spec: &SandboxSpec) -> SandboxReached {
        reached(spec, self.support())
    }

    /// Puts a program into a sandbox. Refused if all of it is required and can't be had, or if a folder is missing.
    pub(crate) fn around(
        &self,
        spec: &SandboxSpec,
        root: &Path,
        temporary: &Path,
        program: PathBuf,
        arguments: Vec<String>,
    ) -> Result<Sandboxed, String> {
        let support = self.support();
        let reached = reached(spec, support);
        refuse_less(&reached)?;
        let is_restricted = spec.level != SandboxLevel::Off && reached.level != ReachedLevel::None;
        if !is_restricted {
            return Ok(Sandboxed { program, arguments, environment: Vec::new(), reached, temporary: None });
        }
        let folder = Folder::make(temporary, "tool")
            .map_err(|error| format!("its temporary folder can't be made in `{}`: {error}", temporary.display()))?;
        let plan = plan(spec, support, root, &program, self.helper(), &folder)?;
        let environment = vec![("TMPDIR".to_owned(), folder.path().display().to_string())];
        let words = [ARGUMENT.to_owned(), "run".to_owned(), plan.to_argument(), program.display().to_string()];
        let arguments = words.into_iter().chain(arguments).collect();
        Ok(Sandboxed { program: self.helper().to_owned(), arguments, environment, reached, temporary: Some(folder) })
    }
}

/// Refuses a sandbox that is required and can't be had whole.
pub(crate) fn refuse_less(reached: &SandboxReached) -> Result<(), String> {
    if reached.requested != SandboxLevel::Required || reached.level == ReachedLevel::Full {
        return Ok(());
    }
    Err(format!(
        "its sandbox is `required` and can't be enforced here: {}; `selvedge sandbox check` shows what can",
        reached.missing.join(", ")
    ))
}

/// What a declaration amounts to without any sandbox.
pub(crate) fn reached_nothing(spec: &SandboxSpec) -> SandboxReached {
    reached(spec, &Support::default())
}

fn reached(spec: &SandboxSpec, support: &Support) -> SandboxReached {
    let off = spec.level == SandboxLevel::Off;
    let support = if off { &Support::default() } else { support };
    let mut missing = Vec::new();
    let mut lacks = |is_missing: bool, what: &str| {
        if is_missing {
            missing.push(what.to_owned());
        }
    };
    let network = match (spec.network, support) {
        (true, _) => "allowed",
        (false, support) if support.socket_filter || support.network_namespace => "none",
        (false, support) if support.landlock >= LANDLOCK_TCP => "tcp_only",
        (false, _) => "open",
    };
    lacks(support.landlock == 0, "files are not restricted (no Landlock)");
    lacks((1..LANDLOCK_FILES).contains(&support.landlock), "files outside can be cut (old Landlock)");
    lacks(network == "tcp_only", "only TCP is stopped, not UDP");
    lacks(network == "open", "the network is open");
    let stops_signals = support.namespaces || support.landlock >= LANDLOCK_SIGNALS;
    lacks(!stops_signals, "signals reach other processes");
    let is_anything = support.landlock > 0 || support.namespaces || support.socket_filter;
    let level = match (missing.is_empty(), is_anything) {
        (true, _) => ReachedLevel::Full,
        (false, true) => ReachedLevel::Partial,
        (false, false) => ReachedLevel::None,
    };
    let processes = if support.namespaces { "pid_namespace" } else { "subreaper" };
    let temporary = if support.tmpfs { "tmpfs" } else { "unbounded" };
    SandboxReached {
        requested: spec.level,
        level,
        files: (support.landlock > 0).then(|| format!("landlock {}", support.landlock)),
        network: network.to_owned(),
        processes: is_anything.then(|| processes.to_owned()),
        temporary: is_anything.then(|| temporary.to_owned()),
        missing: if off { Vec::new() } else { missing },
    }
}

fn plan(
    spec: &SandboxSpec,
    support: &Support,
    root: &Path,
    program: &Path,
    helper: &Path,
    temporary: &Folder,
) -> Result<Plan, String> {
    let declared = |folders: &[String]| folders.iter().map(|folder| real(root, folder)).collect::<Result<Vec<_>, _>>();
    let mut read: Vec<PathBuf> = SYSTEM.iter().map(PathBuf::from).collect();
    read.extend(declared(&spec.read)?);
    read.extend([program.to_owned(), helper.to_owned()]);
    let mut write = declared(&spec.write)?;
    write.extend(DEVICES.iter().map(PathBuf::from));
    write.push(temporary.path().to_owned());
    let tmpfs = || Tmpfs { path: temporary.path().to_owned(), bytes: spec.temporary_bytes_max };
    Ok(Plan {
        landlock: support.landlock,
        read,
        write,
        no_tcp: !spec.network && support.landlock >= LANDLOCK_TCP,
        namespaces: support.namespaces.then_some(Namespaces { network: !spec.network && support.network_namespace }),
        socket_filter: !spec.network && support.socket_filter,
        temporary: support.tmpfs.then(tmpfs),
        limits: Limits {
            memory: spec.memory_bytes_max,
            file: spec.file_bytes_max,
            processor: spec.processor_seconds_max,
            processes: support.namespaces.then_some(spec.processes_max),
        },
    })
}

fn real(root: &Path, folder: &str) -> Result<PathBuf, String> {
    root.join(folder).canonicalize().map_err(|error| format!("the folder `{folder}` of its sandbox: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(spec: &SandboxSpec, support: &Support) -> (ReachedLevel, bool) {
        let reached = reached(spec, support);
        (reached.level, refuse_less(&reached).is_ok())
    }

    #[test]
    fn required_is_all_or_nothing_and_tcp_alone_is_not_all() {
        let all = Support { landlock: 7, namespaces: true, network_namespace: true, tmpfs: true, socket_filter: true };
        let spec = SandboxSpec { level: SandboxLevel::Required, ..SandboxSpec::default() };
        assert_eq!(level(&spec, &all), (ReachedLevel::Full, true));
        assert_eq!(level(&spec, &Support::default()), (ReachedLevel::None, false));
        assert_eq!(level(&spec, &Support { landlock: 0, ..all.clone() }), (ReachedLevel::Partial, false));
        let tcp = Support { landlock: 7, ..Support::default() };
        assert_eq!(level(&spec, &tcp), (ReachedLevel::Partial, false));
        assert_eq!(reached(&spec, &tcp).network, "tcp_only");
        assert_eq!(level(&SandboxSpec { network: true, ..spec.clone() }, &tcp), (ReachedLevel::Full, true));
        let best = SandboxSpec { level: SandboxLevel::Best, ..spec.clone() };
        assert_eq!(level(&best, &Support::default()), (ReachedLevel::None, true));
        let off = SandboxSpec { level: SandboxLevel::Off, ..spec };
        assert_eq!(level(&off, &all), (ReachedLevel::None, true));
    }
}
