//! The one door for developers: `cargo xtask VERB`.
//!
//! In reading order: [`step`] runs one command and times it; [`python`] installs what a test needs; [`mod@test`], [`mod@bench`], [`crash`], [`fuzz`], [`load`] and [`layers`] are the verbs. This program is
//! compiled before anything else can be done, so it depends on as little as it can.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it speaks to whoever sits at the terminal")]

mod bench;
mod crash;
mod faults;
mod fuzz;
mod layers;
mod load;
mod python;
mod step;
mod test;

use std::process::ExitCode;

/// Something a developer can ask for.
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
        takes: "[--quick] [ARGS…]",
        does: "the figures, in release; with --publish all of them, into BENCHMARKS.md; --help lists what it takes",
        run: bench::run,
    },
    Verb {
        name: "crash",
        takes: "[--long] [ARGS…]",
        does: "the crash laboratory: `cargo xtask crash --help` lists what it takes",
        run: crash::run,
    },
    Verb {
        name: "fuzz",
        takes: "[TARGET…] [--seconds N]",
        does: "anything at all, given to every parser that meets the outside, a minute each",
        run: fuzz::run,
    },
    Verb {
        name: "load",
        takes: "[--soak MINUTES]",
        does: "much of everything, in release; memory and descriptors must not grow",
        run: load::run,
    },
    Verb {
        name: "faults",
        takes: "[NAME…]",
        does: "breaks our own code line by line, and says what noticed; writes docs/FAULTS.md",
        run: faults::run,
    },
    Verb { name: "layers", takes: "", does: "whether every crate imports only what it may", run: layers::run },
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
