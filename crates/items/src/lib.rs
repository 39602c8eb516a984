//! Items that users write: directives, agents and tools. Found, checked, verified, and filled in with the inputs of a run.
//!
//! In reading order:
//!
//! - [`error`]: what is wrong with a file, where, and what to do. [`yaml`]: the only reader of YAML.
//! - [`capability`]: what may be called, and what a child may inherit. [`condition`]: conditions on values.
//! - [`input`], [`interpolate`]: the inputs of a run, and how they are inserted into a text.
//! - [`directive`], [`agent`], [`tool`], [`knowledge`], [`graph`]: the items. [`hook`]: the actions of a directive at an event.
//! - [`signature`]: whether an item may run. [`library`]: where items are found. [`config`]: the configuration.
//!
//! Nothing here prints, writes, or reads the environment or the home folder. Files are read in one module, `read`, below
//! folders that the caller passes in, and never through a link. There is nothing to recover after a crash.

pub mod agent;
pub mod capability;
pub mod condition;
pub mod config;
pub mod directive;
pub mod error;
pub mod graph;
pub mod hook;
pub mod input;
pub mod interpolate;
pub mod knowledge;
pub mod library;
pub mod mcp;
pub mod nearest;
mod read;
pub mod signature;
pub mod tool;
pub mod yaml;

pub use agent::Agent;
pub use capability::{Capabilities, Capability, Permissions};
pub use condition::Condition;
pub use config::Config;
pub use directive::Directive;
pub use error::{Flaw, ItemError};
pub use graph::Graph;
pub use input::{Input, InputError, Output};
pub use interpolate::{Environment, Scope};
pub use knowledge::Knowledge;
pub use library::{Layer, Library, Resolved, Source};
pub use signature::{Policy, SignatureVerdict};
