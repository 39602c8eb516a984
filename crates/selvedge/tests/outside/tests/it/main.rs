//! An outside program, which uses the crate `selvedge` and nothing else of the project.

mod approvals;
mod axum_handler;
mod embed;
mod errors;
mod names;
mod own_model;
mod own_tool;
mod subscribe;
mod support;
