//! The nouns of Selvedge and the pure rules between them. Nothing here touches a disk, a clock or a network.

pub mod digest;
pub mod error;
pub mod id;
pub mod outside;
pub mod time;

pub use digest::Digest;
pub use error::{Classify, Kind};
pub use outside::{Clock, Ids};
pub use time::Timestamp;
