//! The command line as its users meet it: the real binary, in folders of its own.

mod append;
mod demo;
mod init;
mod log;
mod processes;
mod screens;
mod state;
mod store;
mod support;
mod thread;
mod verify;
