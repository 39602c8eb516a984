//! `cargo xtask crash`: the crash laboratory. The short form is built like the tests; the long form is optimised, because it checks a
//! hundred thousand states.

use crate::step::{Failure, cargo};

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let mut command = cargo(&["run", "--quiet", "--package", "selvedge-testkit", "--bin", "lab"]);
    if arguments.iter().any(|argument| argument == "--long") {
        command.arg("--release");
    }
    let status = command.arg("--").args(arguments).status();
    let status = status.map_err(|error| Failure(format!("the laboratory can't be started: {error}")))?;
    if !status.success() {
        let why = "the laboratory found a violation; each line above says how to repeat it";
        return Err(Failure(why.to_owned()));
    }
    Ok(())
}
