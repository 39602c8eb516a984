//! What was found amiss on the way, until a caller asks for it.

use std::sync::{Arc, Mutex};

use crate::core::lock;

/// What a store found amiss and left out or mended on the way, in words. It outlives the store, so that a program can report at its end
/// what it has not asked for before.
#[derive(Clone, Debug, Default)]
pub struct Amiss(Arc<Mutex<Vec<String>>>);

impl Amiss {
    /// Keeps a finding; the same one is kept once.
    pub(crate) fn note(&self, what: String) {
        let mut found = lock(&self.0);
        if !found.contains(&what) {
            found.push(what);
        }
    }

    /// What was found since this was last asked.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.0))
    }
}
