//! The tests of the models.

mod anthropic;
mod net;
mod replay;
mod scripted;
