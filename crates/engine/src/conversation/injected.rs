//! Context that hooks injected: at the end of the system prompt, or beside a message of a user.
//!
//! - Prompts have it exactly as recorded, from its event on. The messages themselves stay as they are: a successor does not get it.
//! - Context of one event stands in the order of its hooks, however their results came.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use selvedge_model::Message;
use selvedge_model::event::{Injected, InjectedPlace};
use selvedge_model::message::Block;

use super::Conversation;

/// The injected context of a conversation.
#[derive(Clone, Debug, Default)]
pub(super) struct Context {
    system: Vec<Text>,
    /// By the unit of the message.
    beside: HashMap<usize, Vec<Text>>,
    /// How many bytes it adds to a prompt.
    size: usize,
    /// The messages with their context; computed on demand, as in the conversation.
    prompt: OnceLock<Vec<Arc<Message>>>,
}

/// A text at its place in an order.
#[derive(Clone, Debug)]
struct Text {
    place: InjectedPlace,
    /// What the calls of one occasion have in common.
    occasion: String,
    order: u64,
    text: String,
}

impl Context {
    /// A message was added to the conversation.
    pub(super) fn added(&mut self, message: &Arc<Message>, is_at_end: bool) {
        match self.prompt.get_mut() {
            Some(prompt) if is_at_end => prompt.push(message.clone()),
            _ => _ = self.prompt.take(),
        }
    }
}

/// Adds a text after those of its occasion that come before it in the order.
fn insert(texts: &mut Vec<Text>, text: Text) {
    let follows = |other: &&Text| other.occasion == text.occasion && other.order > text.order;
    let at = texts.len() - texts.iter().rev().take_while(follows).count();
    texts.insert(at, text);
}

impl Conversation {
    /// The number of messages of users.
    pub(crate) fn users(&self) -> u64 {
        self.users.len() as u64
    }

    /// The messages of a prompt: all messages, with the context that was injected beside them.
    pub(crate) fn prompt(&self) -> &[Arc<Message>] {
        if self.context.beside.is_empty() {
            return self.messages();
        }
        self.context.prompt.get_or_init(|| self.flattened(|unit, message| self.with_context(unit, message)))
    }

    /// The context at the end of the system prompt.
    pub(crate) fn system_context(&self) -> impl Iterator<Item = &str> {
        self.context.system.iter().map(|text| text.text.as_str())
    }

    /// Injects context. Beside a message that does not exist it is left out.
    pub(crate) fn inject(&mut self, injected: &Injected) {
        let Injected { call_id, position: place, message, order, text, .. } = injected.clone();
        let occasion = call_id.as_str().split('.').nth(1).unwrap_or_default().to_owned();
        let size = text.len() + 8;
        let text = Text { place, occasion, order, text };
        let index = usize::try_from(message).ok().and_then(|number| number.checked_sub(1));
        match (place, index.and_then(|index| self.users.get(index))) {
            (InjectedPlace::System, _) => insert(&mut self.context.system, text),
            (_, Some(unit)) => insert(self.context.beside.entry(*unit).or_default(), text),
            (_, None) => return,
        }
        self.size += size;
        self.context.size += size;
        self.context.prompt.take();
    }

    /// How many bytes the injected context adds to a prompt.
    pub(crate) fn context_size(&self) -> usize {
        self.context.size
    }

    fn with_context(&self, unit: usize, message: &Arc<Message>) -> Arc<Message> {
        let Some(texts) = self.context.beside.get(&unit) else { return message.clone() };
        let at =
            |place| texts.iter().filter(move |text| text.place == place).map(|text| Block::text(text.text.clone()));
        let own = message.content.iter().cloned();
        let content = at(InjectedPlace::Before).chain(own).chain(at(InjectedPlace::After)).collect();
        Arc::new(Message { content, ..(**message).clone() })
    }
}

#[cfg(test)]
mod tests {
    use selvedge_model::{CallId, Digest, Role};

    use super::*;

    fn injected(call: &str, order: u64, message: u64, position: InjectedPlace) -> Injected {
        Injected {
            call_id: CallId::new(call).unwrap(),
            hook: "h".to_owned(),
            event: "after_step".to_owned(),
            source: "knowledge a".to_owned(),
            digest: Digest([0; 32]),
            position,
            message,
            order,
            text: format!("<{call}>"),
        }
    }

    fn texts(conversation: &Conversation) -> Vec<String> {
        conversation.prompt().iter().map(|message| message.plain_text().replace('\n', "")).collect()
    }

    #[test]
    fn context_stands_beside_its_message_in_the_order_of_the_hooks_and_only_in_prompts() {
        let mut conversation = Conversation::default();
        conversation.push(Message::text(Role::User, "one"));
        conversation.push(Message::text(Role::Assistant, "yes"));
        conversation.push(Message::text(Role::User, "two"));
        assert_eq!(texts(&conversation), ["one", "yes", "two"]);
        let before = conversation.size();
        for (call, order, message, place) in [
            ("hook.a.3.0", 3, 2, InjectedPlace::Before),
            ("hook.a.1.0", 1, 2, InjectedPlace::Before),
            ("hook.a.2.0", 2, 2, InjectedPlace::After),
            // A later occasion stands after an earlier one, whatever the order within it.
            ("hook.b.0.0", 0, 2, InjectedPlace::Before),
            ("hook.c.0.0", 0, 9, InjectedPlace::Before),
            ("hook.d.0.0", 0, 0, InjectedPlace::System),
        ] {
            conversation.inject(&injected(call, order, message, place));
        }
        assert_eq!(texts(&conversation)[2], "<hook.a.1.0><hook.a.3.0><hook.b.0.0>two<hook.a.2.0>");
        assert_eq!(conversation.system_context().collect::<Vec<_>>(), ["<hook.d.0.0>"]);
        assert_eq!(conversation.messages()[2].plain_text(), "two");
        assert!(conversation.size() > before);
        conversation.push(Message::text(Role::Assistant, "no"));
        assert_eq!((texts(&conversation)[3].as_str(), texts(&conversation).len()), ("no", 4));
        assert_eq!(conversation.messages().len(), 4);
    }
}
