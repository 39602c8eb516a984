//! Secrets that become known while the program runs, such as a key that a command printed.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

/// A shorter secret is ignored: it is a placeholder, such as `none`, and would be masked everywhere.
const BYTES_MIN: usize = 8;

/// A list of secrets, shared between the code that learns them and the code that keeps them out of logs. Clones are the same list.
#[derive(Clone, Default)]
pub struct Secrets(Arc<RwLock<Vec<String>>>);

impl Secrets {
    /// Adds a secret. When this returns, every reader of the list knows it.
    pub fn add(&self, secret: &str) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if secret.len() >= BYTES_MIN && !known.iter().any(|other| other == secret) {
            known.push(secret.to_owned());
        }
    }

    /// The secrets so far.
    pub fn all(&self) -> Vec<String> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for Secrets {
    /// Shows how many there are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Secrets").field(&self.all().len()).finish()
    }
}
