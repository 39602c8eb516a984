//! The same work done by other libraries, in turns with ours.
//!
//! The peers are Python packages, at the versions that `bench/peers/requirements.txt` pins, in a virtual environment under
//! the target folder that is made here. Each is used as its documentation shows it, with its own defaults. What can't be
//! set up is skipped, loudly, and the rest is measured.
//!
//! - [`process`]: a peer is a process that is told what to do, line by line. [`postgres`]: a private server.
//! - [`commit`], [`turns`], [`crowd`], [`load`], [`race`]: what is compared.

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

/// Who is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Session,
    Sqlite,
    Postgres,
}

impl Kind {
    /// What the peer's script calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
        }
    }

    /// What people call it.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Session => "SQLiteSession.add_items",
            Self::Sqlite => "SqliteSaver.put",
            Self::Postgres => "PostgresSaver.put",
        }
    }

    /// What people call its reading.
    pub(crate) fn reading(self) -> &'static str {
        match self {
            Self::Session => "SQLiteSession.get_items",
            Self::Sqlite => "SqliteSaver.get_tuple",
            Self::Postgres => "PostgresSaver.get_tuple",
        }
    }
}

/// Where a peer keeps what it is given.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) kind: Kind,
    /// A file, or a connection string.
    pub(crate) at: String,
    /// The folder of the file; nothing for a server.
    pub(crate) folder: Option<PathBuf>,
}

/// Those that could be set up.
pub(crate) struct Peers {
    python: PathBuf,
    script: PathBuf,
    folder: PathBuf,
    cluster: Option<Cluster>,
}

impl Peers {
    /// Those that there are.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        let mut kinds = vec![Kind::Session, Kind::Sqlite];
        kinds.extend(self.cluster.as_ref().map(|_| Kind::Postgres));
        kinds
    }

    /// A new, empty place.
    pub(crate) fn place(&self, kind: Kind, name: &str) -> Outcome<Place> {
        if let (Kind::Postgres, Some(cluster)) = (kind, &self.cluster) {
            return Ok(Place { kind, at: cluster.database(name)?, folder: None });
        }
        let folder = self.folder.join(format!("{}-{name}", kind.name()));
        fs::create_dir(&folder)?;
        Ok(Place { kind, at: folder.join("peer.db").to_string_lossy().into_owned(), folder: Some(folder) })
    }

    /// Starts a peer.
    pub(crate) fn start(&self, place: &Place) -> Outcome<Peer> {
        let mut command = Command::new(&self.python);
        // Where a library would speak to its makers, it is told not to.
        command.env("OPENAI_AGENTS_DISABLE_TRACING", "1").env("LANGSMITH_TRACING", "false");
        Peer::start(command.arg(&self.script).arg(place.kind.name()).arg(&place.at))
    }
}

/// Measures all of it.
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

/// Compares with the peers in a folder of its own.
type Measurement = fn(&Peers, &Path, Plan, &mut Report) -> Outcome<()>;

/// Makes the virtual environment, or finds it made; gives its Python.
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
