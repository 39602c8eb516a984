//! The tests of the tools. Those that need another process to die run this program again.
#![allow(clippy::print_stdout, reason = "a process that is to be killed prints which process it started")]

mod command;
mod death;
mod directive_return;
mod ending;
mod files;
mod mcp;
mod processes;
mod sandbox;
mod support;
mod web;
