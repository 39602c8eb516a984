//! Real power failures: a file system in a file, mounted for this purpose, shut down without flushing in the middle of a scenario.
//!
//! Needs root, loop devices and an ext4 that supports the call; otherwise it is skipped with the reason.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::LabResult;
use crate::run::{Plan, Ready, judge};
use crate::shim::Fault;
use crate::tally::Tally;
use crate::tree::Tree;

/// A mounted file system that is unmounted when dropped.
struct Mounted {
    image: PathBuf,
    place: PathBuf,
    is_up: bool,
}

impl Mounted {
    fn make(folder: &Path) -> LabResult<Self> {
        let image = folder.join("image");
        let place = folder.join("mounted");
        fs::File::create(&image)?.set_len(48 << 20)?;
        fs::create_dir(&place)?;
        command("mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=0", &image.to_string_lossy()])?;
        let mut mounted = Self { image, place, is_up: false };
        mounted.up()?;
        Ok(mounted)
    }

    fn up(&mut self) -> LabResult {
        command("mount", &["-o", "loop", &self.image.to_string_lossy(), &self.place.to_string_lossy()])?;
        self.is_up = true;
        Ok(())
    }

    fn down(&mut self) -> LabResult {
        self.is_up = false;
        command("umount", &[&self.place.to_string_lossy()])
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.is_up {
            _ = self.down();
        }
    }
}

fn command(program: &str, words: &[&str]) -> LabResult {
    let output = Command::new(program).args(words).output().map_err(|error| format!("`{program}`: {error}"))?;
    if !output.status.success() {
        return Err(format!("`{program}`: {}", String::from_utf8_lossy(&output.stderr).trim()).into());
    }
    Ok(())
}

/// Shuts the file system down at each included call.
pub fn run(plan: &Plan, ready: &Ready) -> LabResult<Tally> {
    let mut tally = Tally::default();
    // Not in memory: a loop device needs a file on a disk.
    let folder = tempfile::Builder::new().prefix("selvedge-lab-").tempdir()?;
    let mut mounted = match Mounted::make(folder.path()) {
        Ok(mounted) => mounted,
        Err(error) => {
            tally.skipped.push(format!("real power cuts of `{}`: {error}", ready.scenario.name));
            return Ok(tally);
        }
    };
    for n in (1..=ready.calls).filter(|n| plan.takes(*n)) {
        let root = mounted.place.join("home");
        ready.before.put(&root)?;
        command("sync", &["-f", &root.to_string_lossy()])?;
        let ended = plan.bench.run(&[ready.scenario.name], &root, Fault::Shutdown(n))?;
        if ended.status.code() == Some(9) {
            tally.skipped.push(format!("real power cuts of `{}`: {}", ready.scenario.name, ended.said.trim()));
            return Ok(tally);
        }
        mounted.down()?;
        mounted.up()?;
        // The result is checked elsewhere, so that the check does not wait for a disk.
        let left = Tree::take(&root)?;
        let aside = plan.bench.folder()?;
        let copy = aside.path().join("home");
        left.put(&copy)?;
        let held = judge(ready.scenario, &copy, &ended.facts, 3);
        tally.add("shutdown", ready.scenario.name, || plan.again("shutdown", ready.scenario.name, n), held);
        fs::remove_dir_all(&root)?;
    }
    mounted.down()?;
    Ok(tally)
}
