//! Pages: the signed text of each part, and where the last part begins, as documents of their thread.

use selvedge_log::hash::RunningHash;
use selvedge_model::{ThreadId, Timestamp};
use selvedge_store::Result;
use selvedge_store::effects::EffectLock;
use selvedge_store::pages::{self, PageId, PageStart, Pages};

use crate::open::PostgresStore;

/// The folder of the parts among the documents of a thread.
const FOLDER: &str = "pages";
/// The folder and name of where the last part begins.
const START: (&str, &str) = ("page", "start");

impl Pages for PostgresStore {
    fn lock_pages(&self) -> Result<EffectLock> {
        let mut connection = self.core.pool.connect(None)?;
        let name = format!("selvedge {} pages", self.core.pool.address().schema);
        connection.execute("SELECT pg_advisory_lock(hashtextextended($1, 0))", &[&name])?;
        Ok(EffectLock::new(Box::new(connection)))
    }

    fn page(&self, id: &PageId) -> Result<Option<Vec<u8>>> {
        let sql = "SELECT bytes FROM documents WHERE folder = $1 AND name = $2";
        let found = self.core.read(|connection| Ok(connection.first(sql, &[&FOLDER, &id.as_str()])?))?;
        Ok(found.map(|row| row.get(0)))
    }

    fn put_page(&self, thread: &ThreadId, id: &PageId, body: &str, at: Timestamp) -> Result<()> {
        let core = &self.core;
        let signing = core.signing()?;
        let row = core.existing(thread)?;
        if let Some(stored) = self.page(id)? {
            pages::check_replaceable(thread, id, &stored)?;
        }
        let page = pages::sign(id, body, &signing.signer, at);
        core.put_document(&row, FOLDER, id.as_str(), page.as_bytes(), true).map(drop)
    }

    fn page_start(&self, thread: &ThreadId) -> Result<Option<PageStart>> {
        // Without a key no seal can be checked.
        let Ok(signing) = self.core.signing() else { return Ok(None) };
        let row = self.core.existing(thread)?;
        let stored = self.core.document(&row, START.0, START.1)?;
        Ok(stored.and_then(|stored| pages::decode_start(&signing.seal, thread, &stored)))
    }

    fn set_page_start(&self, thread: &ThreadId, start: Option<(&PageStart, &RunningHash)>) -> Result<()> {
        let signing = self.core.signing()?;
        let row = self.core.existing(thread)?;
        match start {
            Some((start, hash)) => {
                let stored = pages::encode_start(&signing.seal, start, hash);
                self.core.put_document(&row, START.0, START.1, &stored, true).map(drop)
            }
            None => self.core.remove_document(&row, START.0, START.1),
        }
    }
}
