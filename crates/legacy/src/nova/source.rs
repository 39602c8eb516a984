//! Where a file comes from.

use std::io::{self, BufRead};

/// A file that can be read from its beginning more than once.
pub trait Source {
    /// Its name without folders, such as `0123456789ab.jsonl`.
    fn name(&self) -> &str;

    /// Its bytes from the beginning.
    fn open(&self) -> io::Result<Box<dyn BufRead + '_>>;
}
