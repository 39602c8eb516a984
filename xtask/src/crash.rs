//! `cargo xtask crash`: the crash laboratory. The short form is built as the tests are; the long form is optimised, because it
//! looks at a hundred thousand states.

use crate::step::{Failure, cargo};

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let mut command = cargo(&["run", "--quiet", "--package", "selvedge-testkit", "--bin", "lab"]);
    if arguments.iter().any(|argument| argument == "--long") {
        command.arg("--release");
    }
    let status = command.arg("--").args(arguments).status();
    let status = status.map_err(|error| Failure(format!("the laboratory can't be started: {error}")))?;
    match status.success() {
        true => Ok(()),
        false => Err(Failure("the laboratory found something; each line above says how to see it again".to_owned())),
    }
}
