//! Whole runs: real stores, real command tools, real processes that are really killed.

mod directives;
mod effects;
mod examples;
mod hostile;
mod killed;
mod long;
mod names;
mod pages;
mod remote;
mod search;
mod secrets;
mod snapshots;
mod support;
