//! The messages of a thread in the order in which they are sent to the model, and its calls without a result.
//!
//! This is the order of the log, except that the result of a call follows its call directly: providers require it, and a result that came
//! late (after a crash, or after a new message) would stand elsewhere. The calls without a result are indexed, not searched for.
//!
//! ```text
//! units      message ─ results (the tool messages directly after it)
//!               └───── inserted: other messages that answer one of its calls, the latest first
//! messages   all units in order, flattened on demand; what comes at the end is appended to it
//! ```
//!
//! What hooks injected is kept beside the messages (`injected`): only prompts have it.
//!
//! A call in a message is closed by a result in a message. One that a hook or a graph opened is closed by its outcome; it is part of no
//! message, and so of no prompt.
//!
//! Adding a message takes constant time, apart from the search in the tree of open calls.

mod injected;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use selvedge_model::event::{CallOpened, CallOrigin};
use selvedge_model::message::Block;
use selvedge_model::{CallId, Message, MessageId, Role};
use serde_json::Value;

use crate::carryover::size_of;
use injected::Context;

/// A call that has no result yet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OpenCall {
    pub(crate) id: CallId,
    pub(crate) name: String,
    pub(crate) arguments: Value,
    pub(crate) origin: OpenCallOrigin,
}

/// Where a call comes from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum OpenCallOrigin {
    /// A message, which has this unit.
    Message { unit: usize },
    /// An event of its own.
    Opened(CallOrigin),
}

impl OpenCall {
    #[cfg(test)]
    pub(crate) fn new(id: CallId, name: &str, arguments: Value) -> Self {
        Self { id, name: name.to_owned(), arguments, origin: OpenCallOrigin::Message { unit: 0 } }
    }

    /// Whether a message asked for it, so that its result goes into a message.
    pub(crate) fn is_of_message(&self) -> bool {
        matches!(self.origin, OpenCallOrigin::Message { .. })
    }

    /// Whether the thread is suspended while its outcome is unknown.
    pub(crate) fn suspends(&self) -> bool {
        match &self.origin {
            OpenCallOrigin::Message { .. } => true,
            OpenCallOrigin::Opened(origin) => origin.suspends(),
        }
    }
}

/// Calls without a result: those of messages, then those opened by an event, each in their order. So the order is the same whether a
/// thread is read from its log or from a snapshot, which stores messages and events separately.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenCalls {
    asked: CallList,
    opened: CallList,
}

impl OpenCalls {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &OpenCall> {
        self.asked.calls.values().chain(self.opened.calls.values())
    }

    pub(crate) fn len(&self) -> usize {
        self.asked.calls.len() + self.opened.calls.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn to_vec(&self) -> Vec<OpenCall> {
        self.iter().cloned().collect()
    }
}

/// Calls in order of arrival, indexed by id.
#[derive(Clone, Debug, Default)]
struct CallList {
    /// By an increasing number.
    calls: BTreeMap<u64, OpenCall>,
    numbers: HashMap<CallId, Vec<u64>>,
    next: u64,
}

impl CallList {
    /// The first call with this id.
    fn get(&self, id: &CallId) -> Option<&OpenCall> {
        self.calls.get(self.numbers.get(id)?.first()?)
    }

    fn push(&mut self, call: OpenCall) {
        self.numbers.entry(call.id.clone()).or_default().push(self.next);
        self.calls.insert(self.next, call);
        self.next += 1;
    }

    fn close(&mut self, id: &CallId) {
        for number in self.numbers.remove(id).unwrap_or_default() {
            self.calls.remove(&number);
        }
    }
}

/// A message and the messages that must follow it.
#[derive(Clone, Debug)]
struct Unit {
    message: Arc<Message>,
    /// The tool messages directly after it.
    results: Vec<Arc<Message>>,
    /// Units that follow those, the latest first.
    inserted: Vec<usize>,
}

/// The messages of a thread in prompt order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation {
    units: Vec<Unit>,
    /// The units that are not inserted after another one, in order.
    order: Vec<usize>,
    /// All messages in order; computed on demand, and dropped when a message is added anywhere but at the end.
    flat: OnceLock<Vec<Arc<Message>>>,
    known: HashSet<MessageId>,
    open: OpenCalls,
    size: usize,
    /// The units with a message of a user, in order.
    users: Vec<usize>,
    context: Context,
}

impl Conversation {
    /// Roughly how many bytes of text the prompt has.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// A call that the next message will contain.
    pub(crate) fn next_call(&self, id: &CallId, name: &str, arguments: Value) -> OpenCall {
        let origin = OpenCallOrigin::Message { unit: self.units.len() };
        OpenCall { id: id.clone(), name: name.to_owned(), arguments, origin }
    }

    pub(crate) fn messages(&self) -> &[Arc<Message>] {
        self.flat.get_or_init(|| self.flattened(|_, message| message.clone()))
    }

    /// All messages in order, each unit's own one as `shown` gives it.
    fn flattened(&self, shown: impl Fn(usize, &Arc<Message>) -> Arc<Message>) -> Vec<Arc<Message>> {
        let mut flat = Vec::new();
        let mut waiting: Vec<usize> = self.order.iter().rev().copied().collect();
        while let Some(index) = waiting.pop() {
            let Unit { message, results, inserted } = &self.units[index];
            flat.push(shown(index, message));
            flat.extend(results.iter().cloned());
            // The last one stands first.
            waiting.extend(inserted);
        }
        flat
    }

    /// Calls without a result.
    pub(crate) fn open(&self) -> &OpenCalls {
        &self.open
    }

    pub(crate) fn knows(&self, id: &MessageId) -> bool {
        self.known.contains(id)
    }

    /// Whether the model is to answer: the last message is not its own.
    pub(crate) fn wants_answer(&self) -> bool {
        let last = self.last().map(|last| &self.units[last]);
        last.is_some_and(|last| last.results.last().unwrap_or(&last.message).role != Role::Assistant)
    }

    /// The last message and the results of its calls.
    pub(crate) fn last_exchange(&self) -> Option<(&Message, &[Arc<Message>])> {
        let Unit { message, results, .. } = &self.units[self.last()?];
        Some((message, results))
    }

    /// Adds a message, unless one with its id is there already.
    pub(crate) fn push(&mut self, message: Message) {
        if message.id.as_ref().is_some_and(|id| !self.known.insert(id.clone())) {
            return;
        }
        self.size += size_of(&message);
        let message = Arc::new(message);
        let unit = self.put(message.clone());
        for block in &message.content {
            match block {
                Block::ToolCall { id, name, arguments, .. } => {
                    let name = name.clone();
                    let arguments = arguments.clone();
                    let origin = OpenCallOrigin::Message { unit };
                    self.open.asked.push(OpenCall { id: id.clone(), name, arguments, origin });
                }
                Block::ToolResult { call_id, .. } => self.open.asked.close(call_id),
                _ => {}
            }
        }
    }

    /// Adds a call that was opened by an event.
    pub(crate) fn open_call(&mut self, opened: &CallOpened) {
        let CallOpened { call_id, origin, tool, arguments } = opened.clone();
        self.open.opened.push(OpenCall { id: call_id, name: tool, arguments, origin: OpenCallOrigin::Opened(origin) });
    }

    /// Closes a call that has its outcome. A call of a message stays open until its result is in a message, too.
    pub(crate) fn close_call(&mut self, id: &CallId) {
        self.open.opened.close(id);
    }

    /// Puts a message into its place: a result after its call and the results that are there already, any other at the end. Returns its
    /// unit.
    fn put(&mut self, message: Arc<Message>) -> usize {
        let answered = message.content.iter().find_map(|block| match block {
            Block::ToolResult { call_id, .. } => match self.open.asked.get(call_id)?.origin {
                OpenCallOrigin::Message { unit } => Some(unit),
                OpenCallOrigin::Opened(_) => None,
            },
            _ => None,
        });
        let last = self.last();
        let is_at_end = answered.is_none() || answered == last;
        match &mut self.flat.get_mut() {
            Some(flat) if is_at_end => flat.push(message.clone()),
            _ => _ = self.flat.take(),
        }
        self.context.added(&message, is_at_end);
        let is_result = message.role == Role::Tool;
        if let Some(unit) = answered.or(last).filter(|_| is_result) {
            self.units[unit].results.push(message);
            return unit;
        }
        let unit = self.units.len();
        if message.role == Role::User {
            self.users.push(unit);
        }
        self.units.push(Unit { message, results: Vec::new(), inserted: Vec::new() });
        match answered {
            Some(asking) => self.units[asking].inserted.push(unit),
            None => self.order.push(unit),
        }
        unit
    }

    /// The unit that stands last.
    fn last(&self) -> Option<usize> {
        let mut last = *self.order.last()?;
        while let Some(inserted) = self.units[last].inserted.first() {
            last = *inserted;
        }
        Some(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
    fn a_late_result_is_moved_to_its_call() {
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
    }

    fn opened(id: &str) -> CallOpened {
        let call_id = CallId::new(id).unwrap();
        let tool = "t".to_owned();
        let origin = CallOrigin::Node { graph: "g".to_owned(), node: "n".to_owned() };
        CallOpened { call_id, origin, tool, arguments: Value::Null }
    }

    fn open(conversation: &Conversation) -> Vec<&str> {
        conversation.open().iter().map(|open| open.id.as_str()).collect()
    }

    #[test]
    fn an_opened_call_is_open_until_its_outcome_and_is_in_no_message() {
        let mut conversation = Conversation::default();
        conversation.push(Message::text(Role::User, "go"));
        conversation.open_call(&opened("o2"));
        conversation.open_call(&opened("o1"));
        conversation.push(asks(&["a"]));
        assert_eq!(open(&conversation), ["a", "o2", "o1"]);
        // An outcome does not close a call of a message, nor does a message close a call opened by an event.
        conversation.close_call(&CallId::new("a").unwrap());
        conversation.push(answers("o1"));
        assert_eq!(open(&conversation), ["a", "o2", "o1"]);
        conversation.close_call(&CallId::new("o2").unwrap());
        conversation.push(answers("a"));
        assert_eq!(open(&conversation), ["o1"]);
        conversation.close_call(&CallId::new("o1").unwrap());
        assert!(conversation.open().is_empty());
        assert_eq!(roles(&conversation), "uatt");
    }

    /// The order by its definition: every message is compared with every message.
    #[derive(Default)]
    struct Naive {
        messages: Vec<Message>,
        /// Each with the position of the message that contains it.
        open: Vec<(CallId, usize)>,
    }

    impl Naive {
        fn push(&mut self, message: Message) {
            let answered = message.content.iter().find_map(|block| match block {
                Block::ToolResult { call_id, .. } => self.open.iter().find(|(id, _)| id == call_id),
                _ => None,
            });
            let place = answered.map_or(self.messages.len(), |(_, at)| {
                at + 1 + self.messages[at + 1..].iter().take_while(|message| message.role == Role::Tool).count()
            });
            for (_, at) in &mut self.open {
                if *at >= place {
                    *at += 1;
                }
            }
            for block in &message.content {
                match block {
                    Block::ToolCall { id, .. } => self.open.push((id.clone(), place)),
                    Block::ToolResult { call_id, .. } => self.open.retain(|(id, _)| id != call_id),
                    _ => {}
                }
            }
            self.messages.insert(place, message);
        }
    }

    /// A message that contains calls and results, with few ids so that they meet.
    fn any_message() -> impl Strategy<Value = Message> {
        let role = prop_oneof![Just(Role::User), Just(Role::Assistant), Just(Role::Tool), Just(Role::Tool)];
        let id = |n: u8| CallId::new(format!("c{n}")).unwrap();
        let block = prop_oneof![
            (0..6u8).prop_map(move |n| Block::tool_call(id(n), "t", Value::Null)),
            (0..6u8).prop_map(move |n| Block::tool_result(id(n), Value::Null)),
            "[a-z]{1,3}".prop_map(Block::text),
        ];
        let content = proptest::collection::vec(block, 0..3);
        (role, content).prop_map(|(role, content)| Message { content, ..Message::text(role, "") })
    }

    proptest! {
        #[test]
        fn the_order_equals_that_of_a_full_search(
            messages in proptest::collection::vec(any_message(), 0..40),
            reads in proptest::collection::vec(any::<bool>(), 40),
        ) {
            let mut conversation = Conversation::default();
            let mut naive = Naive::default();
            for (message, reads) in messages.into_iter().zip(reads) {
                conversation.push(message.clone());
                naive.push(message);
                // Reading in between changes nothing.
                if reads {
                    conversation.messages();
                }
                let last = naive.messages.last();
                prop_assert_eq!(conversation.wants_answer(), last.is_some_and(|last| last.role != Role::Assistant));
            }
            let shown: Vec<Message> = conversation.messages().iter().map(|message| (**message).clone()).collect();
            prop_assert_eq!(shown, naive.messages);
            let open: Vec<CallId> = conversation.open().iter().map(|open| open.id.clone()).collect();
            prop_assert_eq!(open, naive.open.into_iter().map(|(id, _)| id).collect::<Vec<_>>());
        }
    }

    /// When every open call was compared with every result, this took minutes.
    #[test]
    fn a_result_costs_the_same_with_a_hundred_thousand_open_calls() {
        let calls: Vec<String> = (0..100_000).map(|n| format!("c{n}")).collect();
        let mut conversation = Conversation::default();
        conversation.push(asks(&calls.iter().map(String::as_str).collect::<Vec<_>>()));
        for call in calls.iter().rev() {
            conversation.push(answers(call));
        }
        // Also when each call is in a message of its own that is followed by more messages.
        for call in &calls {
            conversation.push(asks(&[&format!("{call}.late")]));
        }
        for call in &calls {
            conversation.push(answers(&format!("{call}.late")));
        }
        assert!(conversation.open().is_empty() && conversation.messages().len() == 300_001);
        // The same holds for calls opened by an event.
        for call in &calls {
            conversation.open_call(&opened(call));
        }
        for call in calls.iter().rev() {
            conversation.close_call(&CallId::new(call).unwrap());
        }
        assert!(conversation.open().is_empty());
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
