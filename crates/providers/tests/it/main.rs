//! The tests of the models.

mod anthropic;
mod litellm;
mod net;
mod openai;
mod replay;
mod scripted;
