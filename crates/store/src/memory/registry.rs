//! Finding threads, following commits, and reading accounts.

use std::sync::PoisonError;
use std::time::Duration;

use selvedge_model::account::{Account, AccountId, Reservation};
use selvedge_model::{Manifest, Run, ThreadId};

use super::{Inner, MemoryStore, Slot};
use crate::contract::{Cursor, Feed, FeedEntry, Filter, Ledger, Page, Position, Registry, Summary, Tombstone};
use crate::error::{Error, Result};
use crate::newest::by_age;
use crate::prepare::View;

impl Registry for MemoryStore {
    fn get(&self, thread: &ThreadId) -> Result<Summary> {
        let inner = self.inner();
        Ok(inner.summary(inner.slot(thread)?))
    }

    fn list(&self, filter: &Filter, after: Option<Cursor>, limit: usize) -> Result<Page<Summary>> {
        let inner = self.inner();
        let before = after.map_or(u64::MAX, |cursor| cursor.0);
        let mut slots = inner.by_age();
        slots.retain(|slot| slot.number < before && matches(filter, &slot.manifest));
        slots.reverse();
        let next = slots.get(limit).and_then(|_| slots.get(limit.checked_sub(1)?)).map(|last| Cursor(last.number));
        Ok(Page { items: slots.into_iter().take(limit).map(|slot| inner.summary(slot)).collect(), next })
    }

    fn chain(&self, thread: &ThreadId) -> Result<Vec<Summary>> {
        let inner = self.inner();
        inner.slot(thread)?;
        let manifest = |id: &ThreadId| {
            let buried = || inner.tombstones.get(id).map(|tombstone| tombstone.manifest.clone());
            inner.threads.get(id).map(|slot| slot.manifest.clone()).or_else(buried)
        };
        let ids = crate::chain::walk(thread, |id| Ok(manifest(id)))?;
        Ok(ids.iter().filter_map(|id| inner.threads.get(id)).map(|slot| inner.summary(slot)).collect())
    }

    fn children(&self, thread: &ThreadId) -> Result<Vec<Summary>> {
        let inner = self.inner();
        let is_child = |slot: &&Slot| slot.manifest.parent_id.as_ref() == Some(thread);
        Ok(inner.by_age().into_iter().filter(is_child).map(|slot| inner.summary(slot)).collect())
    }

    fn runs(&self, thread: &ThreadId) -> Result<Vec<Run>> {
        Ok(self.inner().slot(thread)?.runs.clone())
    }

    fn resolve(&self, prefix: &str) -> Result<ThreadId> {
        if let Some(found) = by_age(self, prefix) {
            return found;
        }
        let inner = self.inner();
        if let Some((exact, _)) = ThreadId::new(prefix).ok().and_then(|id| inner.threads.get_key_value(&id)) {
            return Ok(exact.clone());
        }
        let begins =
            |id: &&ThreadId| id.as_str().starts_with(prefix) || id.hex().is_some_and(|hex| hex.starts_with(prefix));
        let candidates: Vec<_> = inner.threads.keys().filter(begins).take(6).collect();
        match (prefix.is_empty(), candidates.as_slice()) {
            (false, [one]) => Ok((*one).clone()),
            (true, _) | (_, []) => {
                Err(ThreadId::new(prefix).map_or(Error::NoThread(prefix.to_owned()), |id| inner.missing(&id)))
            }
            (false, several) => {
                let candidates = several.iter().map(ToString::to_string).collect();
                Err(Error::Ambiguous { prefix: prefix.to_owned(), candidates })
            }
        }
    }

    fn tombstone(&self, thread: &ThreadId) -> Result<Option<Tombstone>> {
        Ok(self.inner().tombstones.get(thread).cloned())
    }
}

fn matches(filter: &Filter, manifest: &Manifest) -> bool {
    let Filter { agent_id, directive, status, parent_id, text } = filter;
    let has_text = |text: &String| {
        let text = text.to_lowercase();
        let title = manifest.title.as_deref().unwrap_or_default().to_lowercase();
        manifest.thread_id.as_str().contains(&text) || title.contains(&text)
    };
    agent_id.as_ref().is_none_or(|agent| manifest.agent_id == *agent)
        && directive.as_ref().is_none_or(|directive| manifest.directive.as_ref() == Some(directive))
        && status.is_none_or(|status| manifest.status == status)
        && parent_id.as_ref().is_none_or(|parent| manifest.parent_id.as_ref() == Some(parent))
        && text.as_ref().is_none_or(has_text)
}

impl Feed for MemoryStore {
    fn position(&self) -> Result<u64> {
        Ok(self.inner().feed.len() as u64)
    }

    fn after(&self, position: u64, limit: usize) -> Result<Vec<FeedEntry>> {
        let skip = usize::try_from(position).unwrap_or(usize::MAX);
        Ok(self.inner().feed.iter().skip(skip).take(limit).cloned().collect())
    }

    fn leases_freed(&self) -> u64 {
        self.inner().leases_freed
    }

    fn watch(&self, seen: Position, timeout: Duration) -> Result<()> {
        let inner = self.inner();
        let is_idle = |inner: &mut Inner| {
            inner.feed.len() as u64 <= seen.commits
                && inner.requests_posted <= seen.requests
                && inner.leases_freed <= seen.leases
        };
        let waiting = self.shared.committed.wait_timeout_while(inner, timeout, is_idle);
        drop(waiting.unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }
}

impl Ledger for MemoryStore {
    fn reservations(&self, account: &AccountId) -> Result<Vec<Reservation>> {
        View::reservations(&*self.inner(), account)
    }

    fn account(&self, id: &AccountId) -> Result<Option<Account>> {
        Ok(self.inner().accounts.get(id).cloned())
    }

    fn tree(&self, id: &AccountId) -> Result<Vec<Account>> {
        let inner = self.inner();
        let mut found: Vec<Account> = inner.accounts.get(id).cloned().into_iter().collect();
        let mut next = 0;
        while let Some(parent) = found.get(next).map(|account| account.id.clone()) {
            let new: Vec<_> = inner
                .accounts
                .values()
                .filter(|account| {
                    account.parent.as_ref() == Some(&parent) && found.iter().all(|known| known.id != account.id)
                })
                .cloned()
                .collect();
            found.extend(new);
            next += 1;
        }
        Ok(found)
    }
}
