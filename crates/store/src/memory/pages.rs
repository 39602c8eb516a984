//! Pages without files.

use selvedge_log::hash::RunningHash;
use selvedge_model::{ThreadId, Timestamp};

use super::MemoryStore;
use crate::effects::EffectLock;
use crate::error::Result;
use crate::pages::{self, PageId, PageStart, Pages};

impl Pages for MemoryStore {
    /// The handles of one process share everything, and each write is whole.
    fn lock_pages(&self) -> Result<EffectLock> {
        Ok(EffectLock::new(Box::new(())))
    }

    fn page(&self, id: &PageId) -> Result<Option<Vec<u8>>> {
        Ok(self.inner().pages.get(id).map(|(_, page)| page.clone()))
    }

    fn put_page(&self, thread: &ThreadId, id: &PageId, body: &str, at: Timestamp) -> Result<()> {
        let mut inner = self.inner();
        inner.slot(thread)?;
        let page = pages::sign(id, body, &self.shared.signer, at).into_bytes();
        inner.pages.insert(id.clone(), (thread.clone(), page));
        Ok(())
    }

    fn page_start(&self, thread: &ThreadId) -> Result<Option<PageStart>> {
        let inner = self.inner();
        let stored = inner.slot(thread)?.page_start.as_ref();
        Ok(stored.and_then(|stored| pages::decode_start(&self.shared.signer.seal_key(), thread, stored)))
    }

    fn set_page_start(&self, thread: &ThreadId, start: Option<(&PageStart, &RunningHash)>) -> Result<()> {
        let key = self.shared.signer.seal_key();
        let stored = start.map(|(start, hash)| pages::encode_start(&key, start, hash));
        self.inner().slot_mut(thread)?.page_start = stored;
        Ok(())
    }
}
