//! That a note comes from somebody who holds the key.
//!
//! Notes lie in the database until they are heard, and whoever can write there need not be able to sign. So a note that allows something,
//! a decision or a raise, carries a mark that only the key can make, over all of it and for one chain of threads. One without it
//! changes nothing: it is dropped by the next run, and that is told. One whose key was rotated meanwhile counts as long as that key is at
//! hand among the retired ones.
//! A message allows nothing, and is never dropped. An engine that was handed no key vouches for nothing and hears every note.

use selvedge_log::hash::{Binding, SealKey};
use selvedge_model::{Digest, Note, Reason, ThreadId};
use serde_json::{Value, json};

use crate::deciding::DECIDE;
use crate::engine::Engine;
use crate::error::Result;
use crate::hearing::RAISE;
use crate::held::{Held, Of};
use crate::told::Told;

/// Where the mark stands in a note.
const MARK: &str = "mark";

impl Engine {
    /// The same engine, hearing only what was left by somebody who holds this key.
    #[must_use]
    pub fn sealing(mut self, key: SealKey) -> Self {
        self.seal = Some(key);
        self
    }

    /// The same engine, hearing also what was left by somebody who held one of these keys, which that one took over from.
    #[must_use]
    pub fn hearing(mut self, former: Vec<SealKey>) -> Self {
        self.former = former;
        self
    }

    /// A note with its mark.
    pub(crate) fn vouched(&self, chain: &ThreadId, mut note: Note) -> Note {
        if let (Some(key), true) = (&self.seal, needs_mark(&note.kind)) {
            let mark = key.mark(&place(chain), &content(&note));
            if let Value::Object(body) = &mut note.body {
                body.insert(MARK.to_owned(), json!(mark));
            }
        }
        note
    }

    /// Whether a note for a thread of this chain was left by somebody who holds the key.
    pub(crate) fn is_vouched(&self, chain: &ThreadId, note: &Note) -> bool {
        let Some(key) = self.seal.as_ref().filter(|_| needs_mark(&note.kind)) else { return true };
        let mark = note.body.get(MARK).cloned().and_then(|mark| serde_json::from_value::<Digest>(mark).ok());
        let Some(mark) = mark else { return false };
        let mut keys = std::iter::once(key).chain(&self.former);
        keys.any(|key| key.is_marked(&place(chain), &content(note), &mark))
    }
}

impl Held<'_> {
    /// Whether a note was left by somebody who holds the key.
    pub(crate) fn is_vouched(&self, note: &Note) -> bool {
        self.engine.is_vouched(&self.fold.manifest().chain_root_id, note)
    }

    /// Drops the notes that nobody vouches for, and says so.
    pub(crate) fn drop_unvouched(&mut self, tell: &mut dyn FnMut(Told<'_>)) -> Result<()> {
        for note in self.engine.store.pending(self.thread())? {
            if !self.is_vouched(&note) {
                let (thread, Note { key, kind, .. }) = (self.thread(), &note);
                let of = match note.body.pointer("/decision/call_id").and_then(Value::as_str) {
                    Some(call) => format!(" about call `{call}`"),
                    None => String::new(),
                };
                let why = format!(
                    "note `{key}` (`{kind}`){of} for `{thread}` was not left by anybody who holds the key; it was dropped: whoever \
                     meant it says it again"
                );
                self.delta.consumed.push(note.key);
                self.commit(Reason::Lifecycle, Of::default(), tell)?;
                tell(Told::Dropped { why: &why });
            }
        }
        Ok(())
    }
}

/// Whether notes of a kind allow something that somebody must answer for.
fn needs_mark(kind: &str) -> bool {
    matches!(kind, DECIDE | RAISE)
}

fn place(chain: &ThreadId) -> Binding<'_> {
    Binding { log_id: chain.as_str(), segment: 0, version: 0, offset: 0 }
}

fn content(note: &Note) -> Vec<u8> {
    let mut body = note.body.clone();
    if let Value::Object(body) = &mut body {
        body.remove(MARK);
    }
    json!(["note", note.kind, note.key, body]).to_string().into_bytes()
}
