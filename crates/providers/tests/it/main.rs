//! The tests of the models.

mod scripted;
