//! Servers for tests, started from the system's PostgreSQL in a temporary folder, reached by a Unix socket.
//!
//! - The programs are looked for in `PATH` and in `/usr/lib/postgresql/*/bin`. Where there are none, a test says so and passes; with
//!   `CI=true` it fails.
//! - PostgreSQL refuses to run as root, so root starts it as the user `postgres` or `nobody`.
//! - [`shared`] is one server for all tests of a machine: it is started by the first, and a shell beside it stops it soon after the last
//!   test process has ended. It does not sync: what a power cut would lose does not matter there.
//! - [`Server`] is a server of one test, for stopping, killing and configuring. It syncs.

#![expect(clippy::print_stderr, reason = "a test that is skipped must say so")]

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, flock};

/// The settings of every server: enough connections for many tests at once, and a socket beside the data.
const SETTINGS: &str = "listen_addresses = ''\nmax_connections = 400\nshared_buffers = 64MB\nmax_wal_size = 256MB\n\
                        synchronous_standby_names = ''\nautovacuum_naptime = 10\nlog_min_messages = fatal\n";

/// The programs of PostgreSQL, and the user that runs them.
#[derive(Clone, Debug)]
pub struct Programs {
    folder: PathBuf,
    user: Option<(u32, u32)>,
}

impl Programs {
    /// Finds them; says how to get them if there are none.
    pub fn find() -> Option<Self> {
        let has_all =
            |folder: &PathBuf| ["initdb", "pg_ctl", "postgres"].iter().all(|name| folder.join(name).is_file());
        let named = std::env::var_os("PATH").unwrap_or_default();
        let mut folders: Vec<PathBuf> = std::env::split_paths(&named).collect();
        let packaged = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let mut packaged: Vec<PathBuf> = packaged.map(|entry| entry.path().join("bin")).collect();
        packaged.sort();
        folders.extend(packaged.into_iter().rev());
        // A link in `PATH` leads to the folder that has all of them.
        let real = |folder: PathBuf| fs::canonicalize(folder.join("initdb")).ok()?.parent().map(Path::to_owned);
        let folder = folders.into_iter().filter_map(real).find(has_all)?;
        let user = if rustix::process::geteuid().is_root() { Some(unprivileged()?) } else { None };
        Some(Self { folder, user })
    }

    /// The same; without them the test ends here, as passed if it may be skipped.
    pub fn required() -> Self {
        Self::find().unwrap_or_else(|| {
            let hint = "install it, for example with `apt-get install postgresql`";
            assert!(
                std::env::var_os("CI").is_none_or(|ci| ci != "true"),
                "there is no PostgreSQL on this machine: {hint}"
            );
            eprintln!("SKIPPED: there is no PostgreSQL on this machine; {hint}");
            std::process::exit(0);
        })
    }

    /// A command that runs one of them as the user.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.folder.join(program));
        // Settings of the user's own servers have no place here.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
            command.env_remove(name);
        }
        command.env("LC_ALL", "C").current_dir("/").stdin(Stdio::null());
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let output =
            self.command(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
        let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{program} {arguments:?}: {text}");
    }

    /// Makes a folder that the user may write to.
    fn make_folder(&self, path: &Path) {
        fs::create_dir_all(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        if let Some((uid, gid)) = self.user {
            chown(path, Some(uid), Some(gid)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
    }

    /// Creates a cluster in `folder/data`.
    fn create(&self, folder: &Path, settings: &str) {
        self.make_folder(folder);
        let data = folder.join("data");
        let data_text = data.display().to_string();
        self.run(
            "initdb",
            &["-D", &data_text, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C"],
        );
        let socket = format!("unix_socket_directories = '{}'\n", folder.display());
        let path = data.join("postgresql.conf");
        let before = fs::read_to_string(&path).unwrap_or_default();
        fs::write(&path, format!("{before}\n{SETTINGS}{socket}{settings}")).unwrap_or_else(|error| panic!("{error}"));
    }

    fn start(&self, folder: &Path) {
        let (data, log) = (folder.join("data").display().to_string(), folder.join("log").display().to_string());
        // What the server inherits would keep a pipe of the test runner open.
        let started = self
            .command("pg_ctl")
            .args(["-D", &data, "-l", &log, "-w", "-t", "120", "start"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        assert!(started.is_ok_and(|status| status.success()), "{}", fs::read_to_string(&log).unwrap_or_default());
    }

    fn stop(&self, folder: &Path, mode: &str) {
        let data = folder.join("data").display().to_string();
        let mut command = self.command("pg_ctl");
        command.args(["-D", &data, "-m", mode, "-w", "-t", "60", "stop"]).stdout(Stdio::null()).stderr(Stdio::null());
        _ = command.status();
    }
}

/// The user and group that root starts servers as.
fn unprivileged() -> Option<(u32, u32)> {
    let passwords = fs::read_to_string("/etc/passwd").ok()?;
    ["postgres", "nobody"].iter().find_map(|name| {
        let line = passwords.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    })
}

/// The address of a database on the server with its socket in `folder`.
fn address(folder: &Path) -> String {
    let host = folder.display().to_string().replace('/', "%2F");
    format!("postgres://postgres@{host}/postgres")
}

/// The address of the server that all tests of this machine share; a test uses a schema of its own ([`schema`]).
pub fn shared() -> &'static str {
    static ADDRESS: OnceLock<(String, File)> = OnceLock::new();
    &ADDRESS.get_or_init(|| start_shared(&Programs::required())).0
}

fn start_shared(programs: &Programs) -> (String, File) {
    let user = rustix::process::geteuid().as_raw();
    let folder = std::env::temp_dir().join(format!("selvedge-postgres-{user}"));
    programs.make_folder(&folder);
    let open = |name: &str| {
        let path = folder.join(name);
        let file = File::options().create(true).truncate(false).write(true).read(true).open(&path);
        let file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        _ = fs::set_permissions(&path, fs::Permissions::from_mode(0o666));
        file
    };
    let locked = |file: &File, how: FlockOperation| flock(file, how).unwrap_or_else(|error| panic!("{error}"));
    // Held by every test process while it lives; the shell below stops the server when it gets it.
    let users = open("users");
    let starting = open("starting");
    locked(&starting, FlockOperation::LockExclusive);
    locked(&users, FlockOperation::LockShared);
    if !is_running(&folder) {
        _ = fs::remove_dir_all(folder.join("data"));
        programs.create(&folder, "fsync = off\nsynchronous_commit = on\nfull_page_writes = off\n");
        programs.start(&folder);
        watch_shared(programs, &folder).unwrap_or_else(|error| panic!("{error}"));
    }
    drop(starting);
    (address(&folder), users)
}

fn is_running(folder: &Path) -> bool {
    let pid = fs::read_to_string(folder.join("data/postmaster.pid")).unwrap_or_default();
    let pid = pid.lines().next().and_then(|line| line.trim().parse::<u32>().ok());
    pid.is_some_and(|pid| Path::new(&format!("/proc/{pid}")).exists())
        && std::os::unix::net::UnixStream::connect(folder.join(".s.PGSQL.5432")).is_ok()
}

/// Starts a shell that stops the server once no test process uses it.
fn watch_shared(programs: &Programs, folder: &Path) -> io::Result<()> {
    let script = "while sleep 15; do flock -n -x \"$1/starting\" flock -n -x \"$1/users\" \"$2\" -D \"$1/data\" -m immediate -w stop && exit; \
                  test -d \"$1/data\" || exit; done";
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", script, "sh"]).arg(folder).arg(programs.folder.join("pg_ctl")).current_dir("/");
    if let Some((uid, gid)) = programs.user {
        shell.uid(uid).gid(gid);
    }
    // In a group of its own: the end of the test runner must not end it.
    shell.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    shell.spawn().map(drop)
}

/// An address with a schema that no other test uses.
pub fn schema(address: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::SeqCst);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let sign = if address.contains('?') { '&' } else { '?' };
    format!("{address}{sign}schema=t_{}_{number}_{}", std::process::id(), now.as_nanos() % 1_000_000_000)
}

/// A server of one test, removed when it is dropped.
pub struct Server {
    programs: Programs,
    folder: PathBuf,
}

impl Server {
    /// A new server with these lines in its configuration.
    pub fn start(settings: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let programs = Programs::required();
        let number = NEXT.fetch_add(1, Ordering::SeqCst);
        let folder = std::env::temp_dir().join(format!("selvedge-pg-{}-{number}", std::process::id()));
        _ = fs::remove_dir_all(&folder);
        programs.create(&folder, settings);
        programs.start(&folder);
        Self { programs, folder }
    }

    /// A standby of this server, whose commits wait for it from now on.
    pub fn standby(&self) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::SeqCst);
        let folder = std::env::temp_dir().join(format!("selvedge-pg-{}-standby-{number}", std::process::id()));
        _ = fs::remove_dir_all(&folder);
        self.programs.make_folder(&folder);
        let (data, host) = (folder.join("data").display().to_string(), self.folder.display().to_string());
        self.programs
            .run("pg_basebackup", &["-h", &host, "-U", "postgres", "-D", &data, "-R", "-X", "stream", "-c", "fast"]);
        // The last of several lines of one setting counts.
        let path = folder.join("data/postgresql.conf");
        let before = fs::read_to_string(&path).unwrap_or_default();
        fs::write(&path, format!("{before}\nunix_socket_directories = '{}'\n", folder.display()))
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        self.programs.start(&folder);
        let waits = "ALTER SYSTEM SET synchronous_standby_names = '*'";
        for sql in [waits, "SELECT pg_reload_conf()::text"] {
            execute(&self.address(), sql).unwrap_or_else(|error| panic!("{error}"));
        }
        Self { programs: self.programs.clone(), folder }
    }

    /// Dumps a schema of this server's database, and restores it on another server.
    pub fn dump_to(&self, schema: &str, other: &Self) {
        let file = self.folder.join("dump.sql").display().to_string();
        let (from, to) = (self.folder.display().to_string(), other.folder.display().to_string());
        let base = ["-U", "postgres", "-d", "postgres"];
        self.programs.run("pg_dump", &[&["-h", &from, "-n", schema, "-f", &file][..], &base].concat());
        self.programs.run("psql", &[&["-h", &to, "-q", "-v", "ON_ERROR_STOP=1", "-f", &file][..], &base].concat());
    }

    /// Makes a standby the primary. What it inherited is reset: it would wait for a standby of its own.
    pub fn promote(&self) {
        let data = self.folder.join("data").display().to_string();
        self.programs.run("pg_ctl", &["-D", &data, "-w", "-t", "60", "promote"]);
        for sql in ["ALTER SYSTEM SET synchronous_standby_names = ''", "SELECT pg_reload_conf()::text"] {
            execute(&self.address(), sql).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    /// The address of whichever of two servers takes writes.
    pub fn address_with(&self, other: &Self) -> String {
        let host = |server: &Self| server.folder.display().to_string().replace('/', "%2F");
        format!("postgres://postgres@{},{}/postgres?target_session_attrs=read-write", host(self), host(other))
    }

    /// The address of its database.
    pub fn address(&self) -> String {
        address(&self.folder)
    }

    /// The socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.join(".s.PGSQL.5432")
    }

    /// Stops it: `fast`, or `immediate` as in a crash.
    pub fn stop(&self, mode: &str) {
        self.programs.stop(&self.folder, mode);
    }

    /// From its next start on, every session needs a password, and no role has one.
    pub fn require_passwords(&self) {
        let path = self.folder.join("data/pg_hba.conf");
        fs::write(&path, "local all all scram-sha-256\n").unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Starts it again.
    pub fn start_again(&self) {
        self.programs.start(&self.folder);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop("immediate");
        _ = fs::remove_dir_all(&self.folder);
    }
}

/// Runs statements on a connection of their own, as another program would; the first column of the last row as text, if there is one.
pub fn execute(address: &str, sql: &str) -> Result<Option<String>, String> {
    let pool =
        crate::pool::Pool::new(crate::address::Address::parse(address, None).map_err(|error| error.to_string())?);
    let pool = pool.map_err(|error| error.to_string())?;
    let mut connection = pool.get().map_err(|failure| format!("{failure:?}"))?;
    let found = connection.query(sql, &[]).map_err(|failure| format!("{failure:?}"))?;
    Ok(found.last().filter(|row| !row.is_empty()).map(|row| row.try_get::<_, String>(0).unwrap_or_default()))
}
