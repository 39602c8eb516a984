//! `cargo xtask load [--soak MINUTES]`: a load test, from a release build; memory and descriptors must not grow.

use crate::step::{Failure, Steps, cargo};

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let mut steps = Steps::default();
    steps.run("build", &mut cargo(&["build", "--release", "--package", "selvedge-bench"]))?;
    let mut command = cargo(&["run", "--release", "--quiet", "--package", "selvedge-bench", "--", "under-load"]);
    steps.run("load", command.args(arguments))
}
