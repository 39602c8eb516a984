//! The tests of the models.

mod anthropic;
mod embeddings;
mod litellm;
mod llama;
mod net;
mod openai;
mod replay;
mod scripted;
