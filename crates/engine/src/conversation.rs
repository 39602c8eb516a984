//! The messages of a thread in the order in which a model is shown them.
//!
//! The order of the log, except that the result of a call stands directly behind its call: providers insist on it, and a result
//! that came late (after a crash, or behind a new message) would stand elsewhere. Which calls have no result yet is known
//! without looking through the messages again.

use std::collections::HashSet;
use std::sync::Arc;

use selvedge_model::message::Block;
use selvedge_model::{CallId, Message, MessageId, Role};
use serde_json::Value;

use crate::carry::size_of;

/// A call that has no result yet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OpenCall {
    pub(crate) id: CallId,
    pub(crate) name: String,
    pub(crate) arguments: Value,
    /// Where the message stands that asks for it.
    at: usize,
}

impl OpenCall {
    #[cfg(test)]
    pub(crate) fn new(id: CallId, name: &str, arguments: Value) -> Self {
        Self { id, name: name.to_owned(), arguments, at: 0 }
    }
}

/// The messages of a thread, as a model is shown them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation {
    messages: Vec<Arc<Message>>,
    known: HashSet<MessageId>,
    calls: HashSet<CallId>,
    open: Vec<OpenCall>,
    size: usize,
}

impl Conversation {
    /// How many bytes of text it is to a model, roughly.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// A call that the next message is going to ask for.
    pub(crate) fn next_call(&self, id: &CallId, name: &str, arguments: Value) -> OpenCall {
        OpenCall { id: id.clone(), name: name.to_owned(), arguments, at: self.messages.len() }
    }

    pub(crate) fn messages(&self) -> &[Arc<Message>] {
        &self.messages
    }

    /// Calls that have no result, in the order they were asked for.
    pub(crate) fn open(&self) -> &[OpenCall] {
        &self.open
    }

    pub(crate) fn knows(&self, id: &MessageId) -> bool {
        self.known.contains(id)
    }

    /// Whether a call of this id was ever asked for.
    pub(crate) fn knows_call(&self, id: &CallId) -> bool {
        self.calls.contains(id)
    }

    /// Whether the model has the next word: somebody spoke, or a tool answered, since it did.
    pub(crate) fn wants_answer(&self) -> bool {
        self.messages.last().is_some_and(|last| last.role != Role::Assistant)
    }

    /// Takes a message in, unless one of its id is there already.
    pub(crate) fn push(&mut self, message: Message) {
        if message.id.as_ref().is_some_and(|id| !self.known.insert(id.clone())) {
            return;
        }
        let place = self.place_of(&message);
        self.size += size_of(&message);
        for block in &message.content {
            match block {
                Block::ToolCall { id, name, arguments, .. } => {
                    self.calls.insert(id.clone());
                    let (name, arguments) = (name.clone(), arguments.clone());
                    self.open.push(OpenCall { id: id.clone(), name, arguments, at: place });
                }
                Block::ToolResult { call_id, .. } => self.open.retain(|open| open.id != *call_id),
                _ => {}
            }
        }
        if place < self.messages.len() {
            self.open.iter_mut().filter(|open| open.at >= place).for_each(|open| open.at += 1);
        }
        self.messages.insert(place, Arc::new(message));
    }

    /// Results go behind their call and the results that are there already; everything else goes to the end.
    fn place_of(&self, message: &Message) -> usize {
        let answered = message.content.iter().find_map(|block| match block {
            Block::ToolResult { call_id, .. } => self.open.iter().find(|open| open.id == *call_id),
            _ => None,
        });
        let Some(call) = answered else { return self.messages.len() };
        let is_result = |message: &&Arc<Message>| message.role == Role::Tool;
        call.at + 1 + self.messages[call.at + 1..].iter().take_while(is_result).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(ids: &[&str]) -> Message {
        let call = |id: &&str| Block::tool_call(CallId::new(*id).unwrap(), "t", Value::Null);
        Message { content: ids.iter().map(call).collect(), ..Message::text(Role::Assistant, "") }
    }

    fn answers(id: &str) -> Message {
        let block = Block::tool_result(CallId::new(id).unwrap(), Value::Null);
        Message { content: vec![block], ..Message::text(Role::Tool, "") }
    }

    fn roles(conversation: &Conversation) -> String {
        let letter = |message: &Arc<Message>| match message.role {
            Role::System => 's',
            Role::User => 'u',
            Role::Assistant => 'a',
            Role::Tool => 't',
        };
        conversation.messages().iter().map(letter).collect()
    }

    #[test]
    fn a_result_that_came_late_stands_behind_its_call() {
        let mut conversation = Conversation::default();
        conversation.push(Message::text(Role::User, "go"));
        conversation.push(asks(&["a", "b.c"]));
        conversation.push(answers("a"));
        conversation.push(Message::text(Role::User, "are you there?"));
        assert_eq!(conversation.open().len(), 1);
        conversation.push(answers("b.c"));
        assert_eq!(roles(&conversation), "uattu");
        assert!(conversation.open().is_empty() && conversation.wants_answer());
        conversation.push(asks(&["d"]));
        conversation.push(answers("d"));
        assert_eq!(roles(&conversation), "uattuat");
        assert!(conversation.knows_call(&CallId::new("b.c").unwrap()));
    }

    #[test]
    fn a_message_sent_twice_is_one_message() {
        let mut conversation = Conversation::default();
        let hello = Message::text(Role::User, "hello").with_id(MessageId::new("m1").unwrap());
        conversation.push(hello.clone());
        conversation.push(hello);
        assert_eq!(roles(&conversation), "u");
    }
}
