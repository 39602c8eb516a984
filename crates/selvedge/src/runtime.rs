//! Futures of the embedding program, polled inside its own tokio runtime.
//!
//! The engine polls models and tools in its own small runtime. A program that opens Selvedge inside a tokio runtime expects that the tasks
//! and connections of its tools belong to that one, so such futures enter it while they are polled.

use std::future::{Future, poll_fn};
use std::sync::Arc;

use selvedge_model::answer::Drafts;
use selvedge_model::blocking::BoxFuture;
use selvedge_model::{Answer, Cancel, Model, ModelError, Prompt};
use tokio::runtime::Handle;

/// The same future, which enters the runtime while it is polled.
pub(crate) async fn inside<T>(runtime: Option<Handle>, work: impl Future<Output = T> + Send) -> T {
    let Some(runtime) = runtime else { return work.await };
    let mut work = Box::pin(work);
    poll_fn(|context| {
        let _entered = runtime.enter();
        work.as_mut().poll(context)
    })
    .await
}

/// A model of the program.
pub(crate) struct ProgramModel {
    pub(crate) model: Arc<dyn Model>,
    pub(crate) runtime: Option<Handle>,
}

impl Model for ProgramModel {
    fn answer<'a>(
        &'a self,
        prompt: &'a Prompt<'a>,
        draft: &'a mut Drafts<'a>,
        cancel: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        let entered = self.runtime.as_ref().map(Handle::enter);
        let answer = self.model.answer(prompt, draft, cancel);
        drop(entered);
        Box::pin(inside(self.runtime.clone(), answer))
    }

    fn context_tokens_max(&self, model: &str) -> Option<u64> {
        self.model.context_tokens_max(model)
    }
}
