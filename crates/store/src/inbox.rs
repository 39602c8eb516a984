//! What every backend shares about inboxes: the seal of a request, and where a request to a chain belongs.
//!
//! Requests lie where others may write until they are consumed, and consuming one can approve a call, raise a limit or stop a thread. So
//! each is marked with the signing key, over all of it and for one chain of threads: a request that was planted, altered or moved to
//! another chain is known by its mark, and is dropped and named by the holder that meets it. Its number is part of it: the head of a
//! thread remembers which numbers were consumed ([`crate::seal::Heard`]), so that one that is put back counts as little.

use selvedge_log::hash::{Binding, Seals};
use selvedge_model::{Digest, Posted, ThreadId};
use serde_json::json;

/// The mark of a request to a thread of this chain, posted under this number.
pub fn mark(seals: &Seals, chain_root: &ThreadId, number: u64, posted: &Posted) -> Digest {
    seals.mark(&place(chain_root, number), &content(posted))
}

/// Whether a mark was made for this request, by a key that counts.
pub fn is_marked(seals: &Seals, chain_root: &ThreadId, number: u64, posted: &Posted, mark: &Digest) -> bool {
    seals.is_marked(&place(chain_root, number), &content(posted), mark)
}

/// A request goes along when its chain goes on, so it is bound to the chain and not to one of its logs.
fn place(chain_root: &ThreadId, number: u64) -> Binding<'_> {
    Binding { log_id: chain_root.as_str(), segment: 0, version: number, offset: 0 }
}

fn content(posted: &Posted) -> Vec<u8> {
    json!(["request", posted.id, posted.at, posted.request]).to_string().into_bytes()
}
