//! The entry point for developers: `cargo xtask VERB`.
//!
//! In reading order: [`step`] runs one command and times it; [`python`] and [`postgres`] install what a test needs; [`mod@test`], [`mod@bench`], [`crash`],
//! [`fuzz`], [`load`] and [`layers`] are the verbs. This program is compiled before anything else, so it has as few dependencies as possible.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it prints to the terminal")]

mod bench;
mod crash;
mod faults;
mod fuzz;
mod layers;
mod load;
mod node;
mod postgres;
mod python;
mod step;
mod test;

use std::process::ExitCode;

/// A task that a developer can run.
struct Verb {
    name: &'static str,
    takes: &'static str,
    does: &'static str,
    run: fn(&[String]) -> Result<(), step::Failure>,
}

const VERBS: [Verb; 8] = [
    Verb {
        name: "test",
        takes: "[FILTER…]",
        does: "format, lints, all tests, examples in the docs and the docs; with a FILTER only the tests that match",
        run: test::run,
    },
    Verb {
        name: "bench",
        takes: "[--quick] [--against COMMIT] [ARGS…]",
        does: "the benchmarks, in release; with --publish all of them, into BENCHMARKS.md; with --against those of an earlier tree, in turns with this one; --help lists the arguments",
        run: bench::run,
    },
    Verb {
        name: "crash",
        takes: "[--long] [ARGS…]",
        does: "the crash laboratory: `cargo xtask crash --help` lists the arguments",
        run: crash::run,
    },
    Verb {
        name: "fuzz",
        takes: "[TARGET…] [--seconds N]",
        does: "fuzz every parser that reads untrusted input, a minute each",
        run: fuzz::run,
    },
    Verb {
        name: "load",
        takes: "[--soak MINUTES]",
        does: "a load test, in release; memory and descriptors must not grow",
        run: load::run,
    },
    Verb {
        name: "faults",
        takes: "[NAME…]",
        does: "break our own code line by line, and report which tests notice; writes docs/FAULTS.md",
        run: faults::run,
    },
    Verb { name: "layers", takes: "", does: "check that every crate imports only what it may", run: layers::run },
    Verb { name: "help", takes: "", does: "this list", run: help },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (name, rest) = match arguments.split_first() {
        Some((name, rest)) => (name.as_str(), rest),
        None => ("help", &[][..]),
    };
    let name = if matches!(name, "-h" | "--help") { "help" } else { name };
    let Some(verb) = VERBS.iter().find(|verb| verb.name == name) else {
        eprintln!("error: there is no `cargo xtask {name}`\n\n{}", list());
        return ExitCode::from(2);
    };
    match (verb.run)(rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("\nerror: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn help(_: &[String]) -> Result<(), step::Failure> {
    println!("{}", list());
    Ok(())
}

fn list() -> String {
    let lines = VERBS.iter().map(|verb| format!("  {:<24} {}", format!("{} {}", verb.name, verb.takes), verb.does));
    format!("cargo xtask VERB\n\n{}", lines.collect::<Vec<_>>().join("\n"))
}
