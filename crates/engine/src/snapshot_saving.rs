//! Saves snapshots of a thread under lease, in the background of its run if that is allowed.
//!
//! What a commit, or the next call of the model, triggers is saved at once if the thread is suspended, failed or was stopped, or if the
//! configuration asks for every snapshot. A snapshot that only speeds up a later load is saved on a thread of its own while the run
//! continues; during that, no other is begun. In any case the run continues, and a failure is recorded with its next commit.
//!
//! - A snapshot has the fold of the moment when it was begun, and the store's seal of that moment.
//! - One version is saved once, whatever triggers it: a turn that begins where its last tools ended is saved by whichever trigger is enabled.
//! - Nothing is saved without the lease: before a lease is released, or dropped by a panic, the pending save is completed.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use selvedge_model::{Event, Reason, Status, Timestamp};
use serde_json::Value;

use crate::events::NoticeKind;
use crate::fold::Fold;
use crate::held::{Delta, HeldThread, RunContext};
use crate::snapshot::{Keeper, LastSave, NewestState, SaveFailure, Trigger};

/// The trigger name for a thread that is completed, whose snapshots are then archived or removed.
const ON_COMPLETION: &str = "on_completion";

/// A snapshot that is being saved in the background.
pub(crate) struct PendingSave {
    trigger: &'static str,
    maker: Option<JoinHandle<Result<LastSave, SaveFailure>>>,
}

impl PendingSave {
    /// Begins to save the current fold; none if no thread can be started.
    fn begin(keeper: Arc<Keeper>, fold: &Fold, trigger: &'static str, hooks: &[Value], now: Timestamp) -> Option<Self> {
        let order = keeper.order(fold, trigger, hooks, now);
        let maker = Builder::new().name("snapshot".to_owned()).spawn(move || keeper.save(order)).ok()?;
        Some(Self { trigger, maker: Some(maker) })
    }

    fn is_done(&self) -> bool {
        self.maker.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the result; none if it panicked.
    fn wait(mut self) -> Option<Result<LastSave, SaveFailure>> {
        self.maker.take()?.join().ok()
    }
}

impl Drop for PendingSave {
    fn drop(&mut self) {
        if let Some(maker) = self.maker.take() {
            // A panic was reported where it happened.
            _ = maker.join();
        }
    }
}

impl HeldThread {
    /// Saves a snapshot, or begins to, if the last commit triggers one.
    pub(crate) fn keep_snapshot(&mut self, reason: Reason, before: Status) {
        let Some(keeper) = self.engine.snapshots.clone() else { return };
        let now = self.fold.manifest().status;
        let is_over = self.fold.manifest().run_id.is_none();
        let is_completed = matches!(now, Status::Completed | Status::CompletedWithErrors | Status::Continued);
        self.collect_snapshot(is_over);
        if let Some(trigger) = Trigger::of(reason, before, now) {
            self.save_for(trigger, &keeper);
        } else if before != now && is_completed {
            self.save_completed(&keeper);
        }
        if before != now
            && is_completed
            && let Err(failure) = keeper.complete(self.fold.thread_id(), self.engine.clock.now())
        {
            let what = "the snapshots of the completed thread could not be archived or removed";
            self.failed(ON_COMPLETION, &failure, what);
        }
        if is_over && !self.delta.events.is_empty() {
            // There is no next commit to record it with. A full disk may refuse this one, too; it was published in any case.
            _ = self.commit(Reason::Lifecycle, RunContext::default());
            self.delta = Delta::default();
        }
    }

    /// Saves a snapshot of a completed thread if the newest one is not valid, or would say for ever that the thread runs. A thread without
    /// snapshots needs none now.
    fn save_completed(&mut self, keeper: &Keeper) {
        let newest = keeper.newest(self.fold.thread_id());
        if newest == NewestState::Invalid {
            // An invalid snapshot must not stay, nor disappear without a notice.
            self.fold.saved.clear_base();
        }
        if newest == NewestState::Invalid || (newest == NewestState::Valid && keeper.keeps_completed()) {
            self.save_now(ON_COMPLETION, keeper);
        }
    }

    /// Saves a snapshot, or begins to, before the model is called for the next turn, if that triggers one.
    pub(crate) fn keep_before_turn(&mut self) {
        if let Some(keeper) = self.engine.snapshots.clone() {
            self.collect_snapshot(false);
            self.save_for(Trigger::PreTurn, &keeper);
        }
    }

    fn save_for(&mut self, trigger: Trigger, keeper: &Arc<Keeper>) {
        let is_at_once = keeper.is_at_once(trigger);
        if is_at_once && keeper.is_due(&self.fold, trigger) {
            // The pending save may be of this very version.
            self.collect_snapshot(true);
        }
        if self.saving.is_some() || !keeper.is_due(&self.fold, trigger) {
            return;
        }
        if is_at_once {
            self.save_now(trigger.as_str(), keeper);
        } else {
            let at = self.engine.clock.now();
            self.saving = PendingSave::begin(keeper.clone(), &self.fold, trigger.as_str(), &self.hooks, at);
        }
    }

    fn save_now(&mut self, trigger: &'static str, keeper: &Keeper) {
        let saved = keeper.save(keeper.order(&self.fold, trigger, &self.hooks, self.engine.clock.now()));
        self.saved(trigger, saved);
    }

    /// Takes the result of the pending save, if there is one by now, or waits for it.
    pub(crate) fn collect_snapshot(&mut self, waits: bool) {
        if let Some(saving) = self.saving.take_if(|saving| waits || saving.is_done()) {
            let trigger = saving.trigger;
            if let Some(saved) = saving.wait() {
                self.saved(trigger, saved);
            }
        }
    }

    fn saved(&mut self, trigger: &str, saved: Result<LastSave, SaveFailure>) {
        match saved {
            Ok(mut saved) => {
                if let Some(why) = saved.notice.take().filter(|_| !self.fold.saved.is_told) {
                    self.notice(NoticeKind::Snapshot, &why);
                }
                // It fails after every save until a person acts: one notice is enough.
                if let Some(why) = saved.untidy.as_ref().filter(|_| self.fold.saved.untidy.is_none()) {
                    self.notice(NoticeKind::Snapshot, why);
                }
                self.fold.saved = saved;
            }
            Err(failure) => {
                self.fold.saved = Keeper::tried(&self.fold);
                self.failed(trigger, &failure, "a snapshot could not be saved");
            }
        }
    }

    /// Publishes a failure, and records it with the next commit.
    fn failed(&mut self, trigger: &str, failure: &SaveFailure, what: &str) {
        let record = [("snapshot_failed".to_owned(), failure.record(trigger))];
        self.delta.events.push(Event::ContextInjected(record.into_iter().collect()));
        let why = format!("{what}: {}", failure.why);
        self.notice(NoticeKind::Snapshot, &why);
    }
}
