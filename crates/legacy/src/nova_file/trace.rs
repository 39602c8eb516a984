//! The running hash of bytes, and the hash at one position among them.

use selvedge_log::hash::RunningHash;
use selvedge_model::Digest;

/// The hash of bytes so far, and of those before a mark.
#[derive(Clone, Debug, Default)]
pub(super) struct Trace {
    hash: RunningHash,
    bytes: u64,
    mark: Option<u64>,
    marked: Option<Digest>,
}

impl Trace {
    /// A trace that remembers the hash of the first `mark` bytes.
    pub(super) fn marking(mark: u64) -> Self {
        let trace = Self { mark: Some(mark), ..Self::default() };
        let marked = (mark == 0).then(|| trace.digest());
        Self { marked, ..trace }
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        let before_mark = match self.mark {
            Some(mark) if self.marked.is_none() => usize::try_from(mark - self.bytes).unwrap_or(usize::MAX),
            _ => usize::MAX,
        };
        let (before, after) = bytes.split_at(before_mark.min(bytes.len()));
        self.hash.update(before);
        if before.len() == before_mark {
            self.marked = Some(self.digest());
        }
        self.hash.update(after);
        self.bytes += bytes.len() as u64;
    }

    /// Feeds `count` zero bytes.
    pub(super) fn feed_zeros(&mut self, mut count: u64) {
        const ZEROS: [u8; 4096] = [0; 4096];
        while count > 0 {
            let some = count.min(ZEROS.len() as u64);
            self.feed(&ZEROS[..some as usize]);
            count -= some;
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn digest(&self) -> Digest {
        self.hash.digest()
    }

    /// The hash of the bytes before the mark, if there were that many.
    pub(super) fn marked(&self) -> Option<Digest> {
        self.marked
    }
}
