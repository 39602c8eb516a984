//! What `selvedge sandbox check` tries, and the tests: things that a sandbox must stop.

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::net::{TcpStream, UdpSocket};
use std::process::ExitCode;

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
