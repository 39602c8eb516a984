//! The file formats of earlier systems. Nothing else in the project knows them.
//!
//! - [`rye`]: signatures inside Markdown, YAML and JSON files, verified and never made.
//! - [`nova_file`]: a thread as one file of JSON lines, read with its damage and written again.
//! - [`nova`]: such files imported into any store, and threads exported to them.

pub mod nova;
pub mod nova_file;
pub mod rye;
