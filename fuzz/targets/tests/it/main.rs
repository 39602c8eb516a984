//! Every input that ever failed, and some thousand mutations of the seeds.
#![allow(clippy::print_stderr, reason = "a skipped test is reported")]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use selvedge_fuzz::mutate::{Random, mutate};
use selvedge_fuzz::{TARGETS, Target};

fn check(target: &Target, what: &str, bytes: &[u8]) {
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(bytes)));
    assert!(outcome.is_ok(), "`{}` fails for {what}; as text: {:?}", target.name, String::from_utf8_lossy(bytes));
}

fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|target| target.name == name).unwrap()
}

/// How many times more mutations than usual are run: `SELVEDGE_FUZZ_FACTOR=50 cargo xtask test differential`.
fn factor() -> u64 {
    std::env::var("SELVEDGE_FUZZ_FACTOR").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Seeds, regressions and mutations of one target.
fn all_of(name: &str) {
    let target = target(name);
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty());
    for (number, seed) in seeds.iter().enumerate() {
        check(target, &format!("seed {number}"), seed);
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../regressions").join(name);
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        check(target, &path.display().to_string(), &fs::read(&path).unwrap());
    }
    for number in 0..target.mutations * factor() {
        let mutated = mutate(&seeds, &mut Random::new(number));
        check(target, &format!("mutation {number}"), &mutated);
    }
}

macro_rules! whatever_is_given {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            all_of(stringify!($name));
        })*

        #[test]
        fn every_target_is_run_here() {
            let run = [$(stringify!($name),)* "differential"];
            TARGETS.iter().for_each(|target| assert!(run.contains(&target.name), "{}", target.name));
        }
    };
}

whatever_is_given!(line log sealed_log changeset document trust keychain nova archive config item snapshot restore store_json);

#[test]
fn differential() {
    if !selvedge_fuzz::differential::is_possible() {
        eprintln!("skipped: there is no python3 on this machine");
        return;
    }
    all_of("differential");
}
