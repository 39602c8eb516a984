//! One file per command: its flags, what it asks of the store, what it shows.

pub(crate) mod append;
pub(crate) mod demo;
pub(crate) mod init;
pub(crate) mod log;
pub(crate) mod state;
pub(crate) mod status;
pub(crate) mod thread_delete;
pub(crate) mod thread_find;
pub(crate) mod thread_list;
pub(crate) mod thread_new;
pub(crate) mod thread_rename;
pub(crate) mod thread_show;
pub(crate) mod verify;
