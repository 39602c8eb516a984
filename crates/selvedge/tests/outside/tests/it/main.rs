//! What a program of a stranger does with `selvedge`, and with nothing else of the project.

mod approvals;
mod axum_handler;
mod embed;
mod errors;
mod names;
mod own_model;
mod own_tool;
mod subscribe;
mod support;
