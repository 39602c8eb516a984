//! `cargo xtask test`: all checks and tests, in one build profile.
//!
//! Every step has the same packages, targets and features, so that each crate is checked once, compiled once, and linked into the tests
//! once. With a filter only the tests are run, as between two edits.

use crate::step::{Failure, Steps, cargo, has};
use crate::{node, postgres, python};

pub(crate) fn run(filter: &[String]) -> Result<(), Failure> {
    let mut steps = Steps::default();
    if filter.is_empty() {
        format(&mut steps)?;
        lints(&mut steps)?;
    }
    tests(&mut steps, filter)?;
    if filter.is_empty() {
        examples(&mut steps)?;
        docs(&mut steps)?;
    }
    steps.print_times();
    Ok(())
}

fn format(steps: &mut Steps) -> Result<(), Failure> {
    if !has("fmt") {
        steps.skip("format", "rustfmt is not installed; `rustup component add rustfmt`");
        return Ok(());
    }
    steps.run("format", &mut cargo(&["fmt", "--all", "--check"]))
}

fn lints(steps: &mut Steps) -> Result<(), Failure> {
    if !has("clippy") {
        steps.skip("lints", "clippy is not installed; `rustup component add clippy`");
        return Ok(());
    }
    steps.run("lints", &mut cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
}

/// With nextest each test is a process of its own, which helps tests that kill processes; without it they pass too.
fn tests(steps: &mut Steps, filter: &[String]) -> Result<(), Failure> {
    let runner: &[&str] = if has("nextest") {
        &["nextest", "run", "--workspace"]
    } else {
        &["test", "--workspace", "--lib", "--bins", "--tests", "--examples"]
    };
    let mut command = cargo(runner);
    for server in python::SERVERS {
        if let Some(program) = server.find(steps, filter)? {
            command.env(server.variable, program);
        }
    }
    if let Some(program) = node::find(steps, filter) {
        command.env(node::VARIABLE, program);
    }
    if runner[0] == "test" {
        command.arg("--");
    }
    postgres::find(steps, filter)?;
    steps.run("tests", command.args(filter))
}

fn examples(steps: &mut Steps) -> Result<(), Failure> {
    steps.run("examples in the docs", &mut cargo(&["test", "--workspace", "--doc", "--quiet"]))
}

fn docs(steps: &mut Steps) -> Result<(), Failure> {
    let mut command = cargo(&["doc", "--workspace", "--no-deps", "--all-features", "--quiet"]);
    steps.run("docs", command.env("RUSTDOCFLAGS", "-D warnings"))
}
