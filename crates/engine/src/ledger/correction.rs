//! What a call really cost whose answer was lost, said by whoever has evidence of it.
//!
//! It stands in the log of the chain's end, because a thread that is continued takes nothing any more. It is said once: the reservation is
//! gone then, and what a second one is told is who said what.

use selvedge_model::account::{Account, PostingError};
use selvedge_model::id::ReservationId;
use selvedge_model::{Batch, Changeset, Event, Expect, Ids, Manifest, Money, Part, Reason, ThreadId};
use selvedge_store::{Error as StoreError, Store};

use super::book::{Book, is_overtaken};
use crate::chain;
use crate::error::{Error, Result};

/// How often it is worked out anew when others are faster.
const TRIES: u32 = 64;
/// How many lines of a log are looked at in one go.
const LINES: usize = 1000;

/// Says in the log of a chain's end what a call of it really cost whose answer was lost, also when all of that has ended: durable on
/// return, together with what goes back up the tree. Gives the account.
pub fn correct(
    store: &dyn Store,
    ids: &dyn Ids,
    thread: &ThreadId,
    (lost, amount): (&ReservationId, Money),
    evidence: &str,
) -> Result<Account> {
    let account = store.get(thread)?.manifest.chain_root_id;
    let chain = chain::walk(store, thread)?.into_iter().filter(|(_, is_deleted)| !is_deleted);
    let chain: Vec<Manifest> = chain.map(|(link, _)| link.manifest).collect();
    let end = chain.last().map_or(thread, |link| &link.thread_id);
    for _ in 0..TRIES {
        let mut book = Book::over(store, ids);
        if let Err(error) = book.correct(&account, lost.clone(), amount, evidence.to_owned()) {
            let is_gone = matches!(error, StoreError::Posting(PostingError::UnknownReservation { .. }));
            let before = if is_gone { corrected_before(store, &chain, lost)? } else { None };
            return Err(before.unwrap_or(Error::Store(error)));
        }
        let after = book.account(&account)?;
        let part = Part::new(end.clone(), Expect::Any, Changeset::empty(Reason::Lifecycle));
        match (store.commit(Batch::of(Part { postings: book.into_postings(), ..part })), after) {
            (Ok(_), Some(after)) => return Ok(after),
            (Err(error), _) if !is_overtaken(&error) => return Err(error.into()),
            _ => {}
        }
    }
    Err(StoreError::AccountBusy(account).into())
}

/// What the logs of a chain say of who corrected a reservation before.
fn corrected_before(store: &dyn Store, chain: &[Manifest], lost: &ReservationId) -> Result<Option<Error>> {
    for thread in chain.iter().rev().map(|link| &link.thread_id) {
        let (mut from, mut said) = (0, None);
        loop {
            let lines = store.read(thread, from, LINES)?;
            for line in &lines {
                match (&line.event, &said) {
                    (Event::Corrected(record), None) if record.reservation.as_ref() == Some(lost) => {
                        said = Some((line.timestamp, record.clone()));
                    }
                    // The end of the changeset names who signed it.
                    (Event::Checkpoint(checkpoint), Some((at, record))) => {
                        return Ok(Some(Error::AlreadyCorrected {
                            reservation: lost.clone(),
                            thread: thread.clone(),
                            amount: record.amount.unwrap_or_default(),
                            evidence: record.evidence.clone().unwrap_or_default(),
                            at: *at,
                            signer: checkpoint.signer,
                        }));
                    }
                    _ => {}
                }
            }
            match lines.len() {
                LINES => from += LINES as u64,
                _ => break,
            }
        }
    }
    Ok(None)
}
