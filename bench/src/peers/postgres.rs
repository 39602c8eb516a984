//! A private PostgreSQL server: created for one run, on a socket in its own folder, removed afterwards.
//!
//! It has its own defaults, so every commit is synced. PostgreSQL does not run as root; there it runs as `postgres` or `nobody`.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::Outcome;

/// A running server.
pub(crate) struct Cluster {
    programs: PathBuf,
    user: Option<String>,
    folder: TempDir,
    version: String,
}

impl Cluster {
    /// Creates a server in a folder of its own below `parent`, and starts it.
    pub(crate) fn make(parent: &Path) -> Outcome<Self> {
        let programs =
            programs().ok_or("`initdb` and `pg_ctl` are not installed (Debian: the package `postgresql`)")?;
        let folder = tempfile::Builder::new().prefix("selvedge-pg-").tempdir_in(parent)?;
        let version = Command::new(programs.join("postgres")).arg("--version").output()?;
        let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
        let is_root = rustix::process::geteuid().is_root();
        let user = if is_root { Some(give_away(folder.path())?) } else { None };
        let cluster = Self { programs, user, folder, version };
        cluster
            .run("initdb", &["--no-sync", "-A", "trust", "-U", "postgres", "-E", "UTF8", "-D", &cluster.at("data")])?;
        let options = format!("-c listen_addresses='' -k {}", cluster.at(""));
        cluster.run("pg_ctl", &["-D", &cluster.at("data"), "-w", "-l", &cluster.at("log"), "-o", &options, "start"])?;
        Ok(cluster)
    }

    /// Creates a database; returns its connection string.
    pub(crate) fn database(&self, name: &str) -> Outcome<String> {
        let name = format!("bench_{}", name.replace('-', "_"));
        self.run("createdb", &["-h", &self.at(""), "-U", "postgres", &name])?;
        Ok(format!("host={} user=postgres dbname={name}", self.at("")))
    }

    pub(crate) fn describe(&self) -> String {
        format!("{}, its defaults (so synced), on a socket of the same machine and disk", self.version)
    }

    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().trim_end_matches('/').to_owned()
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Outcome<()> {
        let path = self.programs.join(program);
        let mut command = match &self.user {
            None => Command::new(path),
            Some(user) => {
                let mut command = Command::new("runuser");
                command.args(["-u", user, "--"]).arg(path);
                command
            }
        };
        // The server outlives `pg_ctl`: it must not hold a pipe of ours.
        let said = self.folder.path().join("said");
        let errors = fs::File::create(&said)?;
        let status = command.args(arguments).current_dir(self.folder.path());
        let status = status.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).status()?;
        if status.success() {
            return Ok(());
        }
        let said = fs::read_to_string(&said).unwrap_or_default();
        Err(format!("`{program}` failed: {}", said.lines().last().unwrap_or("it printed nothing")).into())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.run("pg_ctl", &["-D", &self.at("data"), "-m", "fast", "-w", "stop"]);
    }
}

/// The folder of the newest server's programs.
fn programs() -> Option<PathBuf> {
    let complete =
        |folder: &PathBuf| ["initdb", "pg_ctl", "postgres", "createdb"].iter().all(|name| folder.join(name).exists());
    let mut folders: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .collect();
    folders.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    folders.into_iter().rev().chain(std::env::split_paths(&path)).find(complete)
}

/// Gives a folder to a user that a server may run as; returns the user's name.
fn give_away(folder: &Path) -> Outcome<String> {
    let users = fs::read_to_string("/etc/passwd")?;
    let find = |name: &str| {
        let mut words = users.lines().find(|line| line.split(':').next() == Some(name))?.split(':').skip(2);
        Some((name.to_owned(), words.next()?.parse::<u32>().ok()?, words.next()?.parse::<u32>().ok()?))
    };
    let (name, user, group) = find("postgres")
        .or_else(|| find("nobody"))
        .ok_or("PostgreSQL does not run as root, and there is no other user")?;
    chown(folder, Some(user), Some(group))?;
    Ok(name)
}
