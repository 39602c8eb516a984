//! Whole runs: real stores, real command tools, real processes that are really killed.

mod examples;
mod hostile;
mod killed;
mod long;
mod names;
mod ordered;
mod remote;
mod secrets;
mod snapshots;
mod support;
