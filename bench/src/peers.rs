//! The same work with other libraries, in turns with ours.
//!
//! The peers are Python packages, at the versions that `bench/peers/requirements.txt` pins, in a virtual environment under the target
//! folder that is created here. Each is used as its documentation shows, with its own defaults. A peer that can't be set up is skipped,
//! with a warning, and the rest is measured.
//!
//! - [`process`]: a peer is a process that receives commands line by line. [`postgres`]: a private server.
//! - [`commit`], [`turns`], [`crowd`], [`load`], [`race`]: the comparisons.

mod commit;
mod crowd;
mod load;
mod postgres;
mod process;
pub(crate) mod race;
pub(crate) mod turns;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::peers::postgres::Cluster;
use crate::peers::process::Peer;
use crate::report::{Report, progress};
use crate::{Outcome, Plan};

const SCRIPT: &str = include_str!("../peers/peer.py");
const REQUIREMENTS: &str = include_str!("../peers/requirements.txt");

/// The peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Session,
    Sqlite,
    Postgres,
}

impl Kind {
    /// Its name in the peer's script.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
        }
    }

    /// Its name for people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Session => "SQLiteSession.add_items",
            Self::Sqlite => "SqliteSaver.put",
            Self::Postgres => "PostgresSaver.put",
        }
    }

    /// The name of its reading operation for people.
    pub(crate) fn reading(self) -> &'static str {
        match self {
            Self::Session => "SQLiteSession.get_items",
            Self::Sqlite => "SqliteSaver.get_tuple",
            Self::Postgres => "PostgresSaver.get_tuple",
        }
    }
}

/// Where a peer stores its data.
#[derive(Clone, Debug)]
pub(crate) struct PeerStorage {
    pub(crate) kind: Kind,
    /// A file, or a connection string.
    pub(crate) at: String,
    /// The folder of the file; none for a server.
    pub(crate) folder: Option<PathBuf>,
}

/// The peers that could be set up.
pub(crate) struct Peers {
    python: PathBuf,
    script: PathBuf,
    folder: PathBuf,
    cluster: Option<Cluster>,
}

impl Peers {
    /// The available peers.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        let mut kinds = vec![Kind::Session, Kind::Sqlite];
        kinds.extend(self.cluster.as_ref().map(|_| Kind::Postgres));
        kinds
    }

    /// A new, empty storage.
    pub(crate) fn storage(&self, kind: Kind, name: &str) -> Outcome<PeerStorage> {
        if let (Kind::Postgres, Some(cluster)) = (kind, &self.cluster) {
            return Ok(PeerStorage { kind, at: cluster.database(name)?, folder: None });
        }
        let folder = self.folder.join(format!("{}-{name}", kind.name()));
        fs::create_dir(&folder)?;
        Ok(PeerStorage { kind, at: folder.join("peer.db").to_string_lossy().into_owned(), folder: Some(folder) })
    }

    /// Starts a peer.
    pub(crate) fn start(&self, storage: &PeerStorage) -> Outcome<Peer> {
        let mut command = Command::new(&self.python);
        // Telemetry of the libraries is switched off.
        command.env("OPENAI_AGENTS_DISABLE_TRACING", "1").env("LANGSMITH_TRACING", "false");
        Peer::start(command.arg(&self.script).arg(storage.kind.name()).arg(&storage.at))
    }
}

/// Makes all comparisons.
pub(crate) fn measure(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    progress("peers: setting up");
    let python = match environment() {
        Ok(python) => python,
        Err(why) => {
            report.skip("all peers", &why.to_string());
            return Ok(());
        }
    };
    let cluster = Cluster::make(folder.parent().and_then(Path::parent).unwrap_or(folder));
    let cluster = cluster.map_err(|why| report.skip("PostgresSaver", &why.to_string())).ok();
    if let Some(cluster) = &cluster {
        report.method("peers' server", cluster.describe());
    }
    let script = folder.join("peer.py");
    fs::write(&script, SCRIPT)?;
    let peers = Peers { python, script, folder: folder.to_owned(), cluster };
    let packages: Vec<&str> = REQUIREMENTS.lines().collect();
    report.method("peers", format!("{}; Python's own SQLite, each library with its defaults", packages.join(", ")));
    let steps: [(&str, Measurement); 5] = [
        ("One commit", commit::measure),
        ("Turns", turns::measure),
        ("Many at once", crowd::measure),
        ("A fresh process", load::measure),
        ("Two writers", race::measure),
    ];
    for (title, measure) in steps {
        progress(&format!("peers: {}", title.to_lowercase()));
        let folder = folder.join(title.replace(' ', "-"));
        fs::create_dir(&folder)?;
        report.section(&format!("{title}, against peers"), &folder)?;
        measure(&peers, &folder, plan, report)?;
        fs::remove_dir_all(&folder)?;
    }
    Ok(())
}

/// A comparison with the peers in a folder of its own.
type Measurement = fn(&Peers, &Path, Plan, &mut Report) -> Outcome<()>;

/// Creates the virtual environment, or finds it; returns its Python.
fn environment() -> Outcome<PathBuf> {
    let program = std::env::current_exe()?;
    let target = program.parent().and_then(Path::parent).ok_or("the target folder can't be found")?;
    let folder = target.join("bench-peers");
    let python = folder.join("bin/python");
    let made = folder.join("made-of.txt");
    if fs::read_to_string(&made).is_ok_and(|text| text == REQUIREMENTS) {
        return Ok(python);
    }
    let _ = fs::remove_dir_all(&folder);
    let run = |command: &mut Command, what: &str| -> Outcome<()> {
        let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{what}: {error}"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().last().unwrap_or_default().to_owned();
        if output.status.success() { Ok(()) } else { Err(format!("{what} failed: {last}").into()) }
    };
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder), "`python3 -m venv`")?;
    let requirements = folder.join("requirements.txt");
    fs::write(&requirements, REQUIREMENTS)?;
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]).arg(&requirements);
    run(&mut pip, "`pip install`")?;
    fs::write(&made, REQUIREMENTS)?;
    Ok(python)
}

/// Bytes of all files in a folder.
pub(crate) fn bytes_of(folder: &Path) -> Outcome<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        sum += if metadata.is_dir() { bytes_of(&entry.path())? } else { metadata.len() };
    }
    Ok(sum)
}
