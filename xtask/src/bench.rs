//! `cargo xtask bench`: the benchmarks, from a release build; and, with `--against COMMIT`, those of an earlier tree beside this one.
//!
//! The disk and the machine vary from minute to minute, so two trees are only compared in one run: both are built, their benchmarks run in
//! turns, and the ratio of each round is reported.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::step::{Failure, Steps, cargo, root};

/// The measurements that both trees have, and a figure of each; whether more of it is better.
const SHARED: &str = "warm,crowd,turns";
const FIGURES: [(&str, &str, bool); 6] = [
    ("warm_commit_us", "a warm commit", false),
    ("warm_cpu_us", "  processor time of it", false),
    ("crowd_per_second", "commits a second of 64 threads", true),
    ("turns_64_per_second", "engine turns a second of 64 threads", true),
    ("turns_1_per_second", "engine turns a second of one thread", true),
    ("turns_1_engine_us", "  of a turn in the engine itself", false),
];
/// How often each tree is measured.
const ROUNDS: usize = 5;

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let mut steps = Steps::default();
    steps.run("build", &mut cargo(&["build", "--release", "--package", "selvedge-bench"]))?;
    if let Some(place) = arguments.iter().position(|argument| argument == "--against") {
        let commit = arguments.get(place + 1).ok_or_else(|| Failure("`--against` needs a commit".to_owned()))?;
        let rest = [&arguments[..place], &arguments[place + 2..]].concat();
        return against(&mut steps, commit, &rest);
    }
    let mut command = cargo(&["run", "--release", "--quiet", "--package", "selvedge-bench", "--"]);
    steps.run("bench", command.args(arguments))
}

/// Measures this tree and that of a commit in turns, and prints how fast this one is, compared with that.
fn against(steps: &mut Steps, commit: &str, arguments: &[String]) -> Result<(), Failure> {
    let folder = root().join("target/against");
    let before = check_out(commit, &folder)?;
    let manifest = before.join("Cargo.toml").display().to_string();
    let mut build = cargo(&["build", "--release", "--package", "selvedge-bench", "--manifest-path", &manifest]);
    steps.run("build", build.env("CARGO_TARGET_DIR", before.join("target")))?;
    let programs = [before.join("target/release/selvedge-bench"), root().join("target/release/selvedge-bench")];
    let mut measured: Vec<[Value; 2]> = Vec::new();
    for round in 0..ROUNDS {
        let mut both = [Value::Null, Value::Null];
        // Neither tree is always the one that runs first.
        for turn in [round % 2, (round + 1) % 2] {
            let numbers = folder.join("numbers.json");
            let mut bench = Command::new(&programs[turn]);
            bench.current_dir(root()).args(["--only", SHARED, "--json"]).arg(&numbers).args(arguments);
            steps.run(["bench of before", "bench of now"][turn], &mut bench)?;
            let text = fs::read_to_string(&numbers).map_err(failed(&numbers))?;
            let read: Value = serde_json::from_str(&text).map_err(|error| Failure(error.to_string()))?;
            both[turn] = read["numbers"].clone();
        }
        measured.push(both);
    }
    println!("\n{ROUNDS} rounds; a ratio above 1 means that this tree is faster than `{commit}`\n");
    println!("{:38} {:>12} {:>12} {:>7}  {:>6} … {:<6}", "", "before", "now", "ratio", "least", "most");
    for (key, what, is_more_better) in FIGURES {
        let all =
            |tree: usize| measured.iter().filter_map(|both| both[tree][key]["median"].as_f64()).collect::<Vec<_>>();
        let before = all(0);
        let now = all(1);
        if before.len() < ROUNDS || now.len() < ROUNDS {
            println!("{what:38} not measured by both");
            continue;
        }
        let ratios =
            before.iter().zip(&now).map(|(before, now)| if is_more_better { now / before } else { before / now });
        let ratios = sorted(ratios.collect());
        let middle = |figures: Vec<f64>| sorted(figures)[ROUNDS / 2];
        let least = ratios[0];
        let most = ratios[ROUNDS - 1];
        let ratio = ratios[ROUNDS / 2];
        println!("{what:38} {:>12.1} {:>12.1} {ratio:>6.2}×  {least:>6.2} … {most:<6.2}", middle(before), middle(now));
    }
    Ok(())
}

fn sorted(mut figures: Vec<f64>) -> Vec<f64> {
    figures.sort_by(f64::total_cmp);
    figures
}

/// The tree of a commit, in a folder of its own; one that is there is used again.
fn check_out(commit: &str, folder: &Path) -> Result<PathBuf, Failure> {
    let mut parse = Command::new("git");
    parse.args(["rev-parse", "--verify", "--short=12", &format!("{commit}^{{commit}}")]).current_dir(root());
    let named = parse.output().map_err(|error| Failure(format!("`git` can't be started: {error}")))?;
    if !named.status.success() {
        return Err(Failure(format!("there is no commit `{commit}`")));
    }
    let name = String::from_utf8_lossy(&named.stdout).trim().to_owned();
    let tree = folder.join(&name);
    if tree.join("Cargo.toml").is_file() {
        return Ok(tree);
    }
    fs::create_dir_all(&tree).map_err(failed(&tree))?;
    let start = |command: &mut Command| command.spawn().map_err(|error| Failure(error.to_string()));
    let mut archive = start(Command::new("git").args(["archive", &name]).current_dir(root()).stdout(Stdio::piped()))?;
    let bytes = archive.stdout.take().map_or_else(Stdio::null, Stdio::from);
    let mut unpack = start(Command::new("tar").arg("-x").current_dir(&tree).stdin(bytes))?;
    let is_done = [archive.wait(), unpack.wait()].iter().all(|ended| matches!(ended, Ok(status) if status.success()));
    if !is_done {
        // A part of a tree is not used again.
        fs::remove_dir_all(&tree).map_err(failed(&tree))?;
        return Err(Failure(format!("the tree of `{commit}` can't be unpacked")));
    }
    Ok(tree)
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Failure {
    let shown = path.display().to_string();
    move |error| Failure(format!("{shown}: {error}"))
}
