//! The command line as its users meet it: the real binary, in folders of its own.

mod append;
mod archive;
mod backup;
mod demo;
mod doctor;
mod documents;
mod erase;
mod help;
mod init;
mod keys;
mod log;
mod nova;
mod processes;
mod prune;
mod reindex;
mod repair;
mod screens;
mod state;
mod store;
mod support;
mod thread;
mod upgrade;
mod verify;
