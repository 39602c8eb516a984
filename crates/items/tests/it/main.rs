//! Items as users write them: the examples of the documents, and malicious ones.

mod agent;
mod capability;
mod condition;
mod config;
mod directive;
mod graph;
mod hostile;
mod input;
mod interpolate;
mod knowledge;
mod library;
mod providers;
mod signature;
mod tool;
mod yaml;
