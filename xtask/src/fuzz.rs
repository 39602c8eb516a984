//! `cargo xtask fuzz [TARGET…] [--seconds N]`: fuzzes every parser that reads untrusted input.
//!
//! Builds `fuzz/` as cargo-fuzz does, without it and on a stable compiler: coverage comes from an LLVM pass, libFuzzer from a crate (which
//! needs a C++ compiler). Address sanitising is left out, because there is no unsafe code of ours. An input that fails is written to
//! `fuzz/regressions/TARGET`, where the ordinary tests find it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::step::{Failure, Steps, cargo, root};

/// The compiler flags of cargo-fuzz.
const FLAGS: [&str; 9] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
    "-Ccodegen-units=1",
    "-Cdebug-assertions",
];

/// Inputs are small; one that takes more memory or time than this is a finding.
const BOUNDS: [&str; 4] = ["-max_len=65536", "-rss_limit_mb=1024", "-malloc_limit_mb=256", "-timeout=20"];

struct Selection {
    targets: Vec<String>,
    seconds: u32,
}

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let asked = asked(arguments, &targets()?)?;
    let mut steps = Steps::default();
    let programs = build(&mut steps)?;
    for target in &asked.targets {
        fuzz(&programs, target, asked.seconds)?;
    }
    steps.print_times();
    Ok(())
}

/// Every target.
fn targets() -> Result<Vec<String>, Failure> {
    let folder = root().join("fuzz/fuzz_targets");
    let entries = std::fs::read_dir(&folder).map_err(|error| Failure(format!("{}: {error}", folder.display())))?;
    let name = |path: PathBuf| path.file_stem().map(|name| name.to_string_lossy().into_owned());
    let mut names: Vec<String> = entries.flatten().filter_map(|entry| name(entry.path())).collect();
    names.sort();
    Ok(names)
}

fn asked(arguments: &[String], known: &[String]) -> Result<Selection, Failure> {
    let mut asked = Selection { targets: Vec::new(), seconds: 60 };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        if word == "--seconds" {
            let seconds = words.next().and_then(|text| text.parse().ok());
            asked.seconds = seconds.ok_or_else(|| Failure("`--seconds` takes a number".to_owned()))?;
        } else if known.contains(word) {
            asked.targets.push(word.clone());
        } else {
            return Err(Failure(format!("there is no target `{word}`; there are {}", known.join(", "))));
        }
    }
    if asked.targets.is_empty() {
        asked.targets = known.to_vec();
    }
    Ok(asked)
}

/// Builds all targets; returns the folder of the programs.
fn build(steps: &mut Steps) -> Result<PathBuf, Failure> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |folder| root().join(folder));
    let folder = target.join("fuzz");
    let host = host()?;
    // The target is named, so that build scripts are not instrumented.
    let mut command = cargo(&["build", "--release", "--bins", "--manifest-path", "fuzz/Cargo.toml", "--target", &host]);
    command.env("CARGO_TARGET_DIR", &folder).env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\u{1f}"));
    steps.run("build", &mut command)?;
    Ok(folder.join(host).join("release"))
}

/// The target triple of this machine, from the compiler.
fn host() -> Result<String, Failure> {
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(compiler).arg("-vV").output();
    let output = output.map_err(|error| Failure(format!("`rustc` can't be started: {error}")))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| Failure("`rustc -vV` names no host".to_owned()))
}

fn fuzz(programs: &Path, target: &str, seconds: u32) -> Result<(), Failure> {
    let corpus = programs.join("corpus").join(target);
    let regressions = root().join("fuzz/regressions").join(target);
    let run = |command: &mut Command| {
        command.status().map_err(|error| Failure(format!("`{target}` can't be started: {error}")))
    };
    // Compiled like the tests: a program that libFuzzer's `main` is linked into can't have one of its own.
    run(cargo(&["run", "--quiet", "--package", "selvedge-fuzz", "--bin", "seeds", "--", target]).arg(&corpus))?;
    // Version control does not keep empty folders, and libFuzzer needs one.
    std::fs::create_dir_all(&regressions).map_err(|error| Failure(format!("{}: {error}", regressions.display())))?;
    eprintln!("\n── {target}: {seconds} s");
    let mut command = Command::new(programs.join(target));
    command.args(BOUNDS).arg(format!("-max_total_time={seconds}")).args(["-print_final_stats=1", "-verbosity=0"]);
    command.arg(format!("-artifact_prefix={}/", regressions.display())).arg(&corpus).arg(&regressions);
    let status = run(&mut command)?;
    // Absent: nothing was found.
    let _ = std::fs::remove_dir(&regressions);
    if !status.success() {
        return Err(Failure(format!("`{target}` found a failure; the input is in fuzz/regressions/{target}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_is_a_program_and_can_be_selected() {
        let known = targets().unwrap();
        let manifest = std::fs::read_to_string(root().join("fuzz/Cargo.toml")).unwrap();
        assert!(known.len() >= 10);
        for name in &known {
            assert!(manifest.contains(&format!("name = \"{name}\"\n")), "{name} is not in fuzz/Cargo.toml");
        }
        let words = ["line", "--seconds", "5"].map(str::to_owned);
        let asked = asked(&words, &known).unwrap();
        assert_eq!((asked.targets.len(), asked.seconds), (1, 5));
        assert!(super::asked(&["nonsense".to_owned()], &known).is_err());
    }
}
