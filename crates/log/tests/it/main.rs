//! The log from outside: the worked example of `FORMAT.md`, and every way to damage a log.

mod golden;
mod python;
