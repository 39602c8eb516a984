//! `cargo xtask bench`: the benchmarks, from a release build.

use crate::step::{Failure, Steps, cargo};

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let mut steps = Steps::default();
    steps.run("build", &mut cargo(&["build", "--release", "--package", "selvedge-bench"]))?;
    let mut command = cargo(&["run", "--release", "--quiet", "--package", "selvedge-bench", "--"]);
    steps.run("bench", command.args(arguments))
}
