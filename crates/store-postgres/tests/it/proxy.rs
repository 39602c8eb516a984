//! A proxy before a server, which cuts connections where a text goes by.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;

/// In what a client sends: the server gets it and answers, and the client never hears of it.
pub(crate) const CUT_AFTER: &str = "<cut after>";
/// The server never gets it.
pub(crate) const CUT_BEFORE: &str = "<cut before>";
/// The server gets it, and the connection is cut before it can have answered.
pub(crate) const CUT_DURING: &str = "<cut during>";

/// A proxy, which lives as long as the test.
pub(crate) struct Proxy {
    folder: tempfile::TempDir,
}

impl Proxy {
    pub(crate) fn before(server: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join(".s.PGSQL.5432")).unwrap();
        let server = server.to_owned();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                serve(client, server.clone());
            }
        });
        Self { folder }
    }

    pub(crate) fn address(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.folder.path().display().to_string().replace('/', "%2F"))
    }
}

fn serve(mut client: UnixStream, server: PathBuf) {
    let Ok(mut server) = UnixStream::connect(server) else { return };
    let (mut to_client, mut from_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let (cut, is_cut) = std::sync::mpsc::channel::<()>();
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(read @ 1..) = from_server.read(&mut buffer) {
            if is_cut.try_recv().is_ok() {
                // It answered: what it was asked is done.
                break;
            }
            if to_client.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        _ = to_client.shutdown(std::net::Shutdown::Both);
        _ = from_server.shutdown(std::net::Shutdown::Both);
    });
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 20];
        while let Ok(read @ 1..) = client.read(&mut buffer) {
            let has = |text: &str| buffer[..read].windows(text.len()).any(|window| window == text.as_bytes());
            if has(CUT_BEFORE) {
                break;
            }
            if has(CUT_AFTER) {
                _ = cut.send(());
            }
            if server.write_all(&buffer[..read]).is_err() {
                break;
            }
            if has(CUT_DURING) {
                break;
            }
        }
        _ = client.shutdown(std::net::Shutdown::Both);
        // The server notices that its client is gone when it answers or reads on.
        _ = server.shutdown(std::net::Shutdown::Both);
    });
}
