//! Problems that a store found and repaired or left out, until the caller takes them.

use std::sync::{Arc, Mutex};

use crate::core::lock;

/// Problems that a store found, as sentences. The list outlives the store, so that a program can report at its end what it has not taken
/// before.
#[derive(Clone, Debug, Default)]
pub struct Problems(Arc<Mutex<Vec<String>>>);

impl Problems {
    /// Adds a problem; the same one is added once.
    pub(crate) fn note(&self, what: String) {
        let mut found = lock(&self.0);
        if !found.contains(&what) {
            found.push(what);
        }
    }

    /// Takes the problems that were found since the last call.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.0))
    }
}
