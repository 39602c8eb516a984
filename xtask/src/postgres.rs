//! The PostgreSQL server that the tests start themselves: installed from the distribution's packages where that is allowed.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::step::{Failure, Steps};

/// What it is called in the report of the steps.
const NAME: &str = "postgresql";

/// Makes sure that `initdb` is there. It is installed if it is missing and we are root on a system with apt; where that fails it is skipped
/// loudly, and in continuous integration it is a failure. Between two edits nothing is installed, unless the filter asks for it.
pub(crate) fn find(steps: &mut Steps, filter: &[String]) -> Result<(), Failure> {
    if is_installed() || (!filter.is_empty() && !filter.iter().any(|word| word.contains("postgres"))) {
        return Ok(());
    }
    let began = Instant::now();
    match install() {
        Ok(()) if is_installed() => steps.took(NAME, began.elapsed()),
        _ if std::env::var_os("CI").is_some_and(|ci| ci == "true") => {
            return Err(Failure(
                "there is no PostgreSQL, and it can't be installed: `apt-get install postgresql`".to_owned(),
            ));
        }
        failed => {
            if let Err(why) = failed {
                eprintln!("{why}");
            }
            steps.skip(NAME, "it is not installed; the tests that need it do nothing: `apt-get install postgresql`");
        }
    }
    Ok(())
}

/// As the tests look for it.
fn is_installed() -> bool {
    let named = std::env::var_os("PATH").unwrap_or_default();
    let packaged = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let packaged = packaged.map(|entry| entry.path().join("bin"));
    std::env::split_paths(&named).chain(packaged).any(|folder| folder.join("initdb").exists())
}

fn install() -> Result<(), String> {
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0");
    if !is_root || !Path::new("/usr/bin/apt-get").exists() {
        return Err("only root installs packages, with apt".to_owned());
    }
    eprintln!("\n── {NAME}: apt-get install postgresql");
    let mut apt = Command::new("apt-get");
    apt.args(["install", "-y", "-q", "--no-install-recommends", "postgresql"]).env("DEBIAN_FRONTEND", "noninteractive");
    match apt.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("apt-get failed ({status})")),
        Err(error) => Err(error.to_string()),
    }
}
