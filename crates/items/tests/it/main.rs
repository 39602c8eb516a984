//! What users write, as they write it: the examples of the documents, and what somebody with bad intentions would write.

mod agent;
mod capability;
mod condition;
mod config;
mod directive;
mod hostile;
mod input;
mod interpolate;
mod knowledge;
mod library;
mod signature;
mod tool;
mod yaml;
