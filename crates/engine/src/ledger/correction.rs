//! Corrects the cost of a call whose answer was lost, by evidence.
//!
//! The correction is recorded at the end of the chain, because nothing is committed to a thread that is continued. There is at most one: it
//! removes the reservation, and the error for a second one names the first.

use selvedge_model::account::{Account, PostingError};
use selvedge_model::id::ReservationId;
use selvedge_model::{Batch, Changeset, Event, Expect, Ids, Manifest, Money, Part, Reason, ThreadId};
use selvedge_store::{Error as StoreError, Store};

use super::book::{Book, is_overtaken};
use crate::chain;
use crate::error::{Error, Result};

/// How often it is recomputed after conflicting commits.
const TRIES: u32 = 64;
/// How many lines of a log are read at a time.
const LINES: usize = 1000;

/// Corrects the cost of a call whose answer was lost, in the log of the chain's end, also if the chain has ended. On return it is durable,
/// together with what is returned up the tree. Returns the account.
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

/// The error that names an earlier correction of a reservation, by the logs of a chain.
fn corrected_before(store: &dyn Store, chain: &[Manifest], lost: &ReservationId) -> Result<Option<Error>> {
    for thread in chain.iter().rev().map(|link| &link.thread_id) {
        let mut from = 0;
        let mut said = None;
        loop {
            let lines = store.read(thread, from, LINES)?;
            for line in &lines {
                match (&line.event, &said) {
                    (Event::Corrected(record), None) if record.reservation.as_ref() == Some(lost) => {
                        said = Some((line.timestamp, record.clone()));
                    }
                    // The checkpoint of the changeset names the signer.
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
