//! A server over real sockets, with threads on a scripted model.

mod access;
mod support;
mod threads;
