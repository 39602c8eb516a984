//! Real power cuts: a file system in a file, mounted for the purpose, shut down without flushing in the middle of a scenario.
//!
//! Needs root, loop devices and an ext4 that knows the call; where that is not given it is skipped, and says why.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Tried;
use crate::run::{Plan, Ready, judge};
use crate::shim::Blow;
use crate::tally::Tally;
use crate::tree::Tree;

/// A mounted file system that goes when it is dropped.
struct Mounted {
    image: PathBuf,
    place: PathBuf,
    is_up: bool,
}

impl Mounted {
    fn make(folder: &Path) -> Tried<Self> {
        let (image, place) = (folder.join("image"), folder.join("mounted"));
        fs::File::create(&image)?.set_len(48 << 20)?;
        fs::create_dir(&place)?;
        command("mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=0", &image.to_string_lossy()])?;
        let mut mounted = Self { image, place, is_up: false };
        mounted.up()?;
        Ok(mounted)
    }

    fn up(&mut self) -> Tried {
        command("mount", &["-o", "loop", &self.image.to_string_lossy(), &self.place.to_string_lossy()])?;
        self.is_up = true;
        Ok(())
    }

    fn down(&mut self) -> Tried {
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

fn command(program: &str, words: &[&str]) -> Tried {
    let output = Command::new(program).args(words).output().map_err(|error| format!("`{program}`: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("`{program}`: {}", String::from_utf8_lossy(&output.stderr).trim()).into()),
    }
}

/// Pulls the plug at every call that the plan takes.
pub fn run(plan: &Plan, ready: &Ready) -> Tried<Tally> {
    let mut tally = Tally::default();
    // Not in memory: a loop device wants a file on a disk.
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
        let ended = plan.bench.run(&[ready.scenario.name], &root, Blow::Shutdown(n))?;
        if ended.status.code() == Some(9) {
            tally.skipped.push(format!("real power cuts of `{}`: {}", ready.scenario.name, ended.said.trim()));
            return Ok(tally);
        }
        mounted.down()?;
        mounted.up()?;
        // What is left is looked at elsewhere, so that looking does not wait for a disk.
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
