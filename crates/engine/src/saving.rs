//! Saving snapshots of a thread under lease, beside its run where that is allowed.
//!
//! What a commit triggers, or the next call of the model, is saved at once if somebody may wait for it (the thread waits, failed or was
//! stopped), or if the configuration wants every one. A snapshot that only spares a later load is made on a thread of its own, and the run goes on; while one is
//! being made, no other is begun. Whatever becomes of one, the run goes on, and a failure is recorded with its next commit.
//!
//! - A snapshot says what was folded when it was begun, and has the store's seal of that moment.
//! - One version is saved once, whatever triggers it: a turn that begins where its last tools ended is saved by whichever is enabled.
//! - Nothing is saved without the lease: whoever gives a thread back, or loses it to a panic, waits for what is being saved.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use selvedge_model::{Event, Reason, Status, Timestamp};
use serde_json::Value;

use crate::events::NoticeKind;
use crate::fold::Fold;
use crate::held::{Delta, Held, Of};
use crate::snapshot::{Failure, Keeper, Last, NewestIs, Trigger};

/// What a snapshot is saved for when its thread is completed; and what they are put away for.
const ON_COMPLETION: &str = "on_completion";

/// A snapshot that is being saved beside a run.
pub(crate) struct Saving {
    trigger: &'static str,
    maker: Option<JoinHandle<Result<Last, Failure>>>,
}

impl Saving {
    /// Begins to save what is known now; nothing if there is no thread to be had.
    fn begin(keeper: Arc<Keeper>, fold: &Fold, trigger: &'static str, hooks: &[Value], now: Timestamp) -> Option<Self> {
        let order = keeper.order(fold, trigger, hooks, now);
        let maker = Builder::new().name("snapshot".to_owned()).spawn(move || keeper.save(order)).ok()?;
        Some(Self { trigger, maker: Some(maker) })
    }

    fn is_done(&self) -> bool {
        self.maker.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for what comes of it; nothing if it panicked.
    fn wait(mut self) -> Option<Result<Last, Failure>> {
        self.maker.take()?.join().ok()
    }
}

impl Drop for Saving {
    fn drop(&mut self) {
        if let Some(maker) = self.maker.take() {
            // A panic was told where it happened.
            _ = maker.join();
        }
    }
}

impl Held {
    /// Saves a snapshot, or begins to, if what was just committed is worth one.
    pub(crate) fn keep_snapshot(&mut self, reason: Reason, before: Status) {
        let Some(keeper) = self.engine.snapshots.clone() else { return };
        let (now, is_over) = (self.fold.manifest().status, self.fold.manifest().run_id.is_none());
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
            let what = "the snapshots of the completed thread could not be put away";
            self.failed(ON_COMPLETION, &failure, what);
        }
        if is_over && !self.delta.events.is_empty() {
            // There is no next commit to say it with. A disk that is full may refuse this one too, and then it was told.
            _ = self.commit(Reason::Lifecycle, Of::default());
            self.delta = Delta::default();
        }
    }

    /// Saves a snapshot of a thread that is completed where one stays that is not good, or that would say for ever that it runs. A thread
    /// of which nothing was saved needs none now.
    fn save_completed(&mut self, keeper: &Keeper) {
        let newest = keeper.newest(self.fold.thread_id());
        if newest == NewestIs::Bad {
            // What can't be read must not stand there, nor vanish unheard.
            self.fold.saved.stand_on_nothing();
        }
        if newest == NewestIs::Bad || (newest == NewestIs::Good && keeper.keeps_completed()) {
            self.save_now(ON_COMPLETION, keeper);
        }
    }

    /// Saves a snapshot, or begins to, before the model is called for the next turn, if that is worth one.
    pub(crate) fn keep_before_turn(&mut self) {
        if let Some(keeper) = self.engine.snapshots.clone() {
            self.collect_snapshot(false);
            self.save_for(Trigger::PreTurn, &keeper);
        }
    }

    fn save_for(&mut self, trigger: Trigger, keeper: &Arc<Keeper>) {
        let is_at_once = keeper.is_at_once(trigger);
        if is_at_once && keeper.is_due(&self.fold, trigger) {
            // What is being saved may be this very version.
            self.collect_snapshot(true);
        }
        if self.saving.is_some() || !keeper.is_due(&self.fold, trigger) {
            return;
        }
        if is_at_once {
            self.save_now(trigger.as_str(), keeper);
        } else {
            let at = self.engine.clock.now();
            self.saving = Saving::begin(keeper.clone(), &self.fold, trigger.as_str(), &self.hooks, at);
        }
    }

    fn save_now(&mut self, trigger: &'static str, keeper: &Keeper) {
        let saved = keeper.save(keeper.order(&self.fold, trigger, &self.hooks, self.engine.clock.now()));
        self.saved(trigger, saved);
    }

    /// Takes note of what came of the snapshot that is being saved, if that is known, or waits for it.
    pub(crate) fn collect_snapshot(&mut self, waits: bool) {
        if let Some(saving) = self.saving.take_if(|saving| waits || saving.is_done()) {
            let trigger = saving.trigger;
            if let Some(saved) = saving.wait() {
                self.saved(trigger, saved);
            }
        }
    }

    fn saved(&mut self, trigger: &str, saved: Result<Last, Failure>) {
        match saved {
            Ok(mut saved) => {
                if let Some(why) = saved.notice.take().filter(|_| !self.fold.saved.is_told) {
                    self.notice(NoticeKind::Snapshot, &why);
                }
                // It is so after every save until somebody helps: told once is enough.
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

    /// Tells what could not be done, and records it with the next commit.
    fn failed(&mut self, trigger: &str, failure: &Failure, what: &str) {
        let record = [("snapshot_failed".to_owned(), failure.record(trigger))];
        self.delta.events.push(Event::ContextInjected(record.into_iter().collect()));
        let why = format!("{what}: {}", failure.why);
        self.notice(NoticeKind::Snapshot, &why);
    }
}
