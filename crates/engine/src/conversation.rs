//! The messages of a thread in the order in which a model is shown them, and its calls that have no result.
//!
//! The order of the log, except that the result of a call stands directly behind its call: providers insist on it, and a result
//! that came late (after a crash, or behind a new message) would stand elsewhere. Which calls have no result yet is known
//! without looking through the messages again.
//!
//! ```text
//! units      message ─ results (messages of tools directly behind it)
//!               └───── inserted: other messages that answer one of its calls, the latest first
//! messages   all units in order, flattened when it is asked for; what comes at the end is added to it
//! ```
//!
//! A call that a message asks for is closed by a result in a message. One that a hook or a graph opened is closed by its outcome; it is
//! part of no message, and so of no prompt.
//!
//! Taking a message in costs the same however many messages and open calls there are, apart from the search in the tree of open
//! calls.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use selvedge_model::event::{CallOpened, CallOrigin};
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
    pub(crate) origin: Origin,
}

/// Where a call comes from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Origin {
    /// A message asks for it, which has this unit.
    Message { unit: usize },
    /// It was opened by itself.
    Opened(CallOrigin),
}

impl OpenCall {
    #[cfg(test)]
    pub(crate) fn new(id: CallId, name: &str, arguments: Value) -> Self {
        Self { id, name: name.to_owned(), arguments, origin: Origin::Message { unit: 0 } }
    }

    /// Whether a message asks for it, which gets a result.
    pub(crate) fn is_of_message(&self) -> bool {
        matches!(self.origin, Origin::Message { .. })
    }

    /// Whether the thread waits for a person when nobody knows what became of it.
    pub(crate) fn suspends(&self) -> bool {
        match &self.origin {
            Origin::Message { .. } => true,
            Origin::Opened(origin) => origin.suspends(),
        }
    }
}

/// Calls that have no result: those that messages ask for, then those that were opened by themselves, each in their order. So the order
/// is the same whether a thread is read from its log or from a snapshot, which keeps the messages apart from the events.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenCalls {
    asked: Numbered,
    opened: Numbered,
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

/// Calls in the order they came, and by their ids.
#[derive(Clone, Debug, Default)]
struct Numbered {
    /// By a number that rises with every call.
    calls: BTreeMap<u64, OpenCall>,
    numbers: HashMap<CallId, Vec<u64>>,
    next: u64,
}

impl Numbered {
    /// The first call of this id.
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

/// A message and what stands behind it because it belongs there.
#[derive(Clone, Debug)]
struct Unit {
    message: Arc<Message>,
    /// The messages of tools directly behind it.
    results: Vec<Arc<Message>>,
    /// Units that were put behind those, each before the ones that were there.
    inserted: Vec<usize>,
}

/// The messages of a thread, as a model is shown them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation {
    units: Vec<Unit>,
    /// The units that are not inserted behind another one, in order.
    order: Vec<usize>,
    /// All messages in order, once somebody asked for them and until one comes that does not stand at the end.
    flat: OnceLock<Vec<Arc<Message>>>,
    known: HashSet<MessageId>,
    open: OpenCalls,
    size: usize,
}

impl Conversation {
    /// How many bytes of text it is to a model, roughly.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// A call that the next message is going to ask for.
    pub(crate) fn next_call(&self, id: &CallId, name: &str, arguments: Value) -> OpenCall {
        let origin = Origin::Message { unit: self.units.len() };
        OpenCall { id: id.clone(), name: name.to_owned(), arguments, origin }
    }

    pub(crate) fn messages(&self) -> &[Arc<Message>] {
        self.flat.get_or_init(|| {
            let mut flat = Vec::new();
            let mut waiting: Vec<usize> = self.order.iter().rev().copied().collect();
            while let Some(Unit { message, results, inserted }) = waiting.pop().map(|unit| &self.units[unit]) {
                flat.push(message.clone());
                flat.extend(results.iter().cloned());
                // The last one stands first.
                waiting.extend(inserted);
            }
            flat
        })
    }

    /// Calls that have no result.
    pub(crate) fn open(&self) -> &OpenCalls {
        &self.open
    }

    pub(crate) fn knows(&self, id: &MessageId) -> bool {
        self.known.contains(id)
    }

    /// Whether the model has the next word: somebody spoke, or a tool answered, since it did.
    pub(crate) fn wants_answer(&self) -> bool {
        let last = self.last().map(|last| &self.units[last]);
        last.is_some_and(|last| last.results.last().unwrap_or(&last.message).role != Role::Assistant)
    }

    /// Takes a message in, unless one of its id is there already.
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
                    let (name, arguments) = (name.clone(), arguments.clone());
                    let origin = Origin::Message { unit };
                    self.open.asked.push(OpenCall { id: id.clone(), name, arguments, origin });
                }
                Block::ToolResult { call_id, .. } => self.open.asked.close(call_id),
                _ => {}
            }
        }
    }

    /// Takes in a call that no message asks for.
    pub(crate) fn open_call(&mut self, opened: &CallOpened) {
        let CallOpened { call_id, origin, tool, arguments } = opened.clone();
        self.open.opened.push(OpenCall { id: call_id, name: tool, arguments, origin: Origin::Opened(origin) });
    }

    /// Takes in that a call has its outcome. One that a message asks for stays open until its result is in a message, too.
    pub(crate) fn close_call(&mut self, id: &CallId) {
        self.open.opened.close(id);
    }

    /// Puts a message where it belongs: a result behind its call and the results that are there already, everything else at the
    /// end. Gives its unit.
    fn put(&mut self, message: Arc<Message>) -> usize {
        let answered = message.content.iter().find_map(|block| match block {
            Block::ToolResult { call_id, .. } => match self.open.asked.get(call_id)?.origin {
                Origin::Message { unit } => Some(unit),
                Origin::Opened(_) => None,
            },
            _ => None,
        });
        let last = self.last();
        match &mut self.flat.get_mut() {
            Some(flat) if answered.is_none() || answered == last => flat.push(message.clone()),
            _ => _ = self.flat.take(),
        }
        let is_result = message.role == Role::Tool;
        if let Some(unit) = answered.or(last).filter(|_| is_result) {
            self.units[unit].results.push(message);
            return unit;
        }
        let unit = self.units.len();
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
    }

    fn opened(id: &str) -> CallOpened {
        let (call_id, tool) = (CallId::new(id).unwrap(), "t".to_owned());
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
        // An outcome does not answer a message, nor a message what was opened by itself.
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

    /// The order by its definition: every message is looked at for every message.
    #[derive(Default)]
    struct Naive {
        messages: Vec<Message>,
        /// Each with where the message stands that asks for it.
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
            self.open.iter_mut().filter(|(_, at)| *at >= place).for_each(|(_, at)| *at += 1);
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

    /// A message of anybody that asks for some calls and answers others, of few ids so that they meet.
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
        fn the_order_is_the_one_that_looking_through_everything_gives(
            messages in proptest::collection::vec(any_message(), 0..40),
            looks in proptest::collection::vec(any::<bool>(), 40),
        ) {
            let (mut conversation, mut naive) = (Conversation::default(), Naive::default());
            for (message, looks) in messages.into_iter().zip(looks) {
                conversation.push(message.clone());
                naive.push(message);
                // Whether somebody looked in between changes nothing.
                if looks {
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

    /// With every open call looked at for every result, this took minutes.
    #[test]
    fn a_result_costs_the_same_with_a_hundred_thousand_open_calls() {
        let calls: Vec<String> = (0..100_000).map(|n| format!("c{n}")).collect();
        let mut conversation = Conversation::default();
        conversation.push(asks(&calls.iter().map(String::as_str).collect::<Vec<_>>()));
        calls.iter().rev().for_each(|call| conversation.push(answers(call)));
        // Also where each stands in a message of its own, with others behind it.
        for call in &calls {
            conversation.push(asks(&[&format!("{call}.late")]));
        }
        calls.iter().for_each(|call| conversation.push(answers(&format!("{call}.late"))));
        assert!(conversation.open().is_empty() && conversation.messages().len() == 300_001);
        // Nor does one that no message asks for cost more.
        calls.iter().for_each(|call| conversation.open_call(&opened(call)));
        calls.iter().rev().for_each(|call| conversation.close_call(&CallId::new(call).unwrap()));
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
