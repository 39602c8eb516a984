//! A model that counts how many of its answers are being streamed.

use std::sync::atomic::{AtomicUsize, Ordering};

use selvedge_model::answer::Drafts;
use selvedge_model::blocking::BoxFuture;
use selvedge_model::{Answer, Cancel, Draft, Model, ModelError, Prompt};
use selvedge_providers::Remote;

/// A model on the network, and how many of its answers have begun and not ended.
pub(super) struct OpenStreams {
    inner: Remote,
    open: AtomicUsize,
    most: AtomicUsize,
}

impl OpenStreams {
    pub(super) fn of(inner: Remote) -> Self {
        Self { inner, open: AtomicUsize::new(0), most: AtomicUsize::new(0) }
    }

    /// The most answers that were open at one time.
    pub(super) fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

impl Model for OpenStreams {
    fn answer<'a>(
        &'a self,
        prompt: &'a Prompt<'a>,
        draft: &'a mut Drafts<'a>,
        cancel: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(async move {
            let mut is_open = false;
            let mut counted = |piece: Draft| {
                if !is_open {
                    is_open = true;
                    let open = self.open.fetch_add(1, Ordering::SeqCst) + 1;
                    self.most.fetch_max(open, Ordering::SeqCst);
                }
                draft(piece);
            };
            let answer = self.inner.answer(prompt, &mut counted, cancel).await;
            if is_open {
                self.open.fetch_sub(1, Ordering::SeqCst);
            }
            answer
        })
    }

    fn context_tokens_max(&self, model: &str) -> Option<u64> {
        self.inner.context_tokens_max(model)
    }
}
