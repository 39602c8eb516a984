//! What every backend shares about inboxes: the seal of a request.
//!
//! Until they are consumed, requests are stored where other programs may write, and consuming one can approve a call, raise a limit or stop
//! a thread. So each is marked with the signing key, over its whole content and for one chain of threads: a request that was planted,
//! altered or moved to another chain fails its mark, and the lease holder drops and reports it. Its number is included: the head of a
//! thread records which numbers were consumed ([`crate::seal::ConsumedRequests`]), so that a consumed request that is inserted again is not
//! accepted.

use selvedge_log::hash::{Binding, Seals};
use selvedge_model::{Digest, Posted, ThreadId};
use serde_json::json;

/// The mark of a request to a thread of this chain, posted under this number.
pub fn mark(seals: &Seals, chain_root: &ThreadId, number: u64, posted: &Posted) -> Digest {
    seals.mark(&binding(chain_root, number), &content(posted))
}

/// Whether a mark was made for this request, by an accepted key.
pub fn is_marked(seals: &Seals, chain_root: &ThreadId, number: u64, posted: &Posted, mark: &Digest) -> bool {
    seals.is_marked(&binding(chain_root, number), &content(posted), mark)
}

/// A request moves along when its chain continues, so it is bound to the chain and not to one of its logs.
fn binding(chain_root: &ThreadId, number: u64) -> Binding<'_> {
    Binding { log_id: chain_root.as_str(), segment: 0, version: number, offset: 0 }
}

fn content(posted: &Posted) -> Vec<u8> {
    json!(["request", posted.id, posted.at, posted.request]).to_string().into_bytes()
}
