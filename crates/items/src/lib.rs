//! What users write: directives, agents and tools. Found, checked, verified, and filled in with what a run is given.
//!
//! In reading order:
//!
//! - [`error`]: what is wrong with a file, where, and what to do. [`yaml`]: the one reader of YAML.
//! - [`capability`]: what may be called, and what a child may inherit. [`condition`]: when something holds.
//! - [`input`], [`interpolate`]: what a run is given, and how it gets into a text.
//! - [`directive`], [`agent`], [`tool`], [`knowledge`]: the items. [`hook`]: what a directive wants done at an event.
//! - [`signature`]: whether an item may run. [`library`]: where items are found. [`config`]: how everything is set.
//!
//! Nothing here prints, writes, or looks at the environment or the home folder. Files are read in one place, `read`, below
//! folders that the caller hands over, and never through a link. There is nothing to recover after a crash.

pub mod agent;
pub mod capability;
pub mod condition;
pub mod config;
pub mod directive;
pub mod error;
pub mod hook;
pub mod input;
pub mod interpolate;
pub mod knowledge;
pub mod library;
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
pub use input::{Input, InputError, Output};
pub use interpolate::{Environment, Scope};
pub use knowledge::Knowledge;
pub use library::{Layer, Library, Resolved, Source};
pub use signature::{Policy, Verdict};
