//! The tests of the models.

mod replay;
mod scripted;
