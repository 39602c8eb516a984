//! The fold from outside.

mod fold;
