//! Creates threads that no other thread starts.
//!
//! The batch that creates a thread also posts its first input: when a method returns, both are durable, and nothing has run.

use selvedge_model::tool::Started;
use selvedge_model::{Batch, Cancel, Changeset, CommitKey, Expect, Input, NewThread, Part, ThreadId};
use selvedge_store::Error as StoreError;

use super::Engine;
use crate::error::{Error, Result};
use crate::events::{CreatedThread, FirstChangeset};

/// Starts a process, behind a gate, that will run a thread; the error says why it could not be started.
pub type Launch<'a> = dyn Fn(&ThreadId) -> std::result::Result<Box<dyn Started>, String> + 'a;

impl Engine {
    /// Creates a thread named after its directive or agent; its first messages are posted to its inbox. When this returns, both are durable
    /// and nothing has run; [`Engine::resume`] runs it.
    pub fn create(&self, thread: NewThread, input: impl Into<Input>) -> Result<ThreadId> {
        let id = self.name(&thread);
        self.create_as(&id, thread, input.into(), None)?;
        Ok(id)
    }

    /// Creates a thread as [`Engine::create`] does, at most once for each key. Returns `false` with the existing thread if the key was used.
    pub fn create_once(&self, key: &CommitKey, thread: NewThread, input: impl Into<Input>) -> Result<(ThreadId, bool)> {
        if let Some(first) = self.created_under(key)? {
            return Ok((first, false));
        }
        let id = self.name(&thread);
        match self.create_as(&id, thread, input.into(), Some(key)) {
            Ok(()) => Ok((id, true)),
            // Another process was faster.
            Err(Error::Store(error @ StoreError::KeyReused(_))) => match self.created_under(key)? {
                Some(first) => Ok((first, false)),
                None => Err(error.into()),
            },
            Err(error) => Err(error),
        }
    }

    /// The thread that was created under a key, if there is one.
    pub fn created_under(&self, key: &CommitKey) -> Result<Option<ThreadId>> {
        let committed = self.store.outcome(key)?;
        Ok(committed.and_then(|committed| committed.versions.into_iter().next()).map(|(thread, _)| thread))
    }

    /// Creates a thread as [`Engine::create`] does, and lets a process of its own run it. The process starts behind a gate. Its identity is
    /// in the batch that creates the thread, and the gate opens once that batch is durable: so the process can be found, and killed, by that
    /// record. With a key, the thread is created at most once: if the key was used, its thread is returned and nothing is started.
    pub fn create_detached(
        &self,
        mut thread: NewThread,
        input: impl Into<Input>,
        key: Option<&CommitKey>,
        launch: &Launch<'_>,
    ) -> Result<ThreadId> {
        if let Some(first) = key.map(|key| self.created_under(key)).transpose()?.flatten() {
            return Ok(first);
        }
        let id = self.name(&thread);
        let not_started = |why| Error::NotStarted { thread: id.clone(), why, is_there: false };
        let launched = launch(&id).map_err(not_started)?;
        thread.process = launched.process();
        if thread.process.is_none() {
            return Err(not_started("its process has no identity besides its process id".to_owned()));
        }
        if let Err(error) = self.create_as(&id, thread, input.into(), key) {
            // Another process was faster; the gate of this one never opens.
            let first = key.map(|key| self.created_under(key)).transpose()?.flatten();
            return first.ok_or(error);
        }
        match launched.dispatch(&Cancel::new()).wait() {
            Ok(_) => Ok(id),
            Err(error) => Err(Error::NotStarted { thread: id, why: error.to_string(), is_there: true }),
        }
    }

    fn name(&self, thread: &NewThread) -> ThreadId {
        ThreadId::generate(thread.name(), &self.ids.hex12())
    }

    fn create_as(&self, id: &ThreadId, mut thread: NewThread, mut input: Input, key: Option<&CommitKey>) -> Result<()> {
        self.redactor.thread(&mut thread);
        self.redactor.messages(&mut input.messages);
        if let Some(state) = &mut input.state {
            self.redactor.value(state);
        }
        if let (Some(parent), None) = (&thread.parent_id, &thread.family_root_id) {
            thread.family_root_id = Some(self.store.get(parent)?.manifest.family_root().clone());
        }
        let part = Part::new(id.clone(), Expect::Absent, Changeset::creating(thread));
        let born = [CreatedThread::of(&part)];
        let mut batch = Batch::of(part);
        batch.posted.extend(self.first_send(id, input)?);
        if let Some(key) = key {
            batch = batch.with_key(key.clone());
        }
        let committed = self.store.commit(batch)?;
        if !committed.replayed {
            for birth in FirstChangeset::among(committed.parts, &born) {
                self.publish_first(birth);
            }
        }
        Ok(())
    }
}
