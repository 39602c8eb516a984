//! What `selvedge sandbox check` tries, and the tests: things that a sandbox must stop.

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use selvedge_model::tool::SandboxSpec;

use super::helper::ARGUMENT;
use super::support::Sandbox;
use super::temporary::Folder;

/// It was stopped.
pub const STOPPED: u8 = 10;

/// Attempts one thing: exit code 0 if it worked, [`STOPPED`] if not.
pub(super) fn attempt(what: &str, arguments: &[OsString]) -> ExitCode {
    let first = arguments.first().map(OsString::as_os_str).unwrap_or_default();
    let address = first.to_string_lossy().into_owned();
    let outcome = match what {
        "read" => fs::File::open(first).and_then(|mut file| std::io::Read::read(&mut file, &mut [0; 1])).map(drop),
        "write" => fs::File::options().create(true).append(true).open(first).and_then(|mut file| file.write_all(b"x")),
        "tcp" => TcpStream::connect(address).map(drop),
        "udp" => UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.send_to(b"x", address)).map(drop),
        "signal" => signal(&address),
        "fill" => fill(first),
        _ => Err(std::io::Error::other("unknown")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::from(STOPPED)
        }
    }
}

fn signal(pid: &str) -> std::io::Result<()> {
    let pid = pid.parse().ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.ok_or_else(|| std::io::Error::other("no process id"))?;
    Ok(rustix::process::test_kill_process(pid)?)
}

/// Writes 4 MiB into a folder.
fn fill(folder: &std::ffi::OsStr) -> std::io::Result<()> {
    let mut file = fs::File::create(std::path::Path::new(folder).join("fill"))?;
    (0..64).try_for_each(|_| file.write_all(&[1; 64 << 10]))
}

/// One thing that was attempted in a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Trial {
    /// What was attempted.
    pub attempt: &'static str,
    /// Whether it was stopped.
    pub stopped: bool,
    /// What the process said, or why it could not be tried.
    pub said: String,
}

/// Attempts what a sandbox must stop, each in a process of its own, with folders made for it in `temporary`.
pub fn all(sandbox: &Sandbox, temporary: &Path) -> Result<Vec<Trial>, String> {
    let failed = |error: std::io::Error| error.to_string();
    let outside = Folder::make(temporary, "check").map_err(failed)?;
    let root = Folder::make(temporary, "check").map_err(failed)?;
    let file = outside.path().join("file");
    fs::write(&file, "x").map_err(failed)?;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    let receiver = UdpSocket::bind("127.0.0.1:0").map_err(failed)?;
    let tcp = listener.local_addr().map_err(failed)?.to_string();
    let udp = receiver.local_addr().map_err(failed)?.to_string();
    let file = file.display().to_string();
    let pid = std::process::id().to_string();
    let attempts: [(&'static str, &str, &str); 6] = [
        ("read a file outside", "read", &file),
        ("write a file outside", "write", &file),
        ("connect by TCP", "tcp", &tcp),
        ("send by UDP", "udp", &udp),
        ("signal another process", "signal", &pid),
        ("fill the temporary folder", "fill", "$TMPDIR"),
    ];
    attempts
        .into_iter()
        .map(|(attempt, word, argument)| one(sandbox, &root, temporary, attempt, [word, argument]))
        .collect()
}

fn one(
    sandbox: &Sandbox,
    root: &Folder,
    temporary: &Path,
    attempt: &'static str,
    words: [&str; 2],
) -> Result<Trial, String> {
    let spec = SandboxSpec { temporary_bytes_max: 1 << 20, ..SandboxSpec::default() };
    let arguments = [ARGUMENT, "try", words[0], words[1]].map(str::to_owned).to_vec();
    let mut around = sandbox.around(&spec, root.path(), temporary, sandbox.helper().to_owned(), arguments)?;
    let folder = around.environment.first().map(|(_, folder)| folder.clone()).unwrap_or_default();
    if let Some(last) = around.arguments.last_mut().filter(|last| *last == "$TMPDIR") {
        *last = if folder.is_empty() { root.path().display().to_string() } else { folder };
    }
    let mut command = Command::new(&around.program);
    command.args(&around.arguments).env_clear().envs(around.environment).current_dir(root.path()).stdin(Stdio::null());
    let output = command.output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let stopped = output.status.code() == Some(i32::from(STOPPED));
    Ok(Trial { attempt, stopped, said })
}
