//! Which messages a successor starts with: a pure function, counted in bytes of text.
//!
//! Always the original task, and the last message of a user; then the newest whole exchanges that fit: a call never goes without its result.
//! At least the last exchange is kept; a part of it that is too long is shortened, and its whole text is stored as a blob. The task is
//! the first message of a user, so a provider that requires a user message first accepts the prompt, and the end of a long chain still knows
//! its task and the latest request.

use std::sync::Arc;

use selvedge_model::message::{Block, Visibility};
use selvedge_model::{Digest, Message, Role};
use serde_json::{Value, json};

/// The messages that are carried over, and the counts of those that are not.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Carryover {
    pub(crate) messages: Vec<Message>,
    /// How many messages are dropped.
    pub(crate) dropped: u64,
    /// How many blocks were shortened.
    pub(crate) shortened: u64,
}

/// Stores the whole of a text that is shortened; returns its digest.
pub(crate) type StoreText<'p, E> = &'p mut dyn FnMut(&str) -> Result<Digest, E>;

/// The least bytes of a block that are kept, however little room there is.
const SHOWN_MIN: usize = 256;

impl Carryover {
    /// How many answers of the model are carried over.
    pub(crate) fn turns(&self) -> u64 {
        self.messages.iter().filter(|message| message.role == Role::Assistant).count() as u64
    }

    /// How many bytes of text are carried over.
    pub(crate) fn size(&self) -> usize {
        self.messages.iter().map(size_of).sum()
    }

    /// Chooses what fits into `room` bytes.
    pub(crate) fn of<E>(messages: &[Arc<Message>], room: usize, put: StoreText<'_, E>) -> Result<Self, E> {
        let mut carry = Self::default();
        let head = messages.iter().position(|message| message.role == Role::User).map_or(0, |task| task + 1);
        let (head, rest) = messages.split_at(head);
        for message in head {
            // The task may take half of the room, so that some of the work on it is carried over, too.
            let message = carry.fitting(message, room / 2 / head.len().max(1), put)?;
            carry.messages.push(message);
        }
        let units = exchanges(rest);
        let (mut first, mut left) = newest(&units, room.saturating_sub(carry.size()));
        // The last request may be older than all that fits, and is more important.
        let request = units.iter().rposition(|unit| is_request(&unit[0]));
        let request = request.filter(|request| *request < first.min(units.len() - 1));
        if let Some(request) = request {
            let message = carry.fitting(&units[request][0], room / 4, put)?;
            carry.messages.push(message);
            (first, left) = newest(&units, room.saturating_sub(carry.size()));
        }
        if first == units.len()
            && let Some(last) = units.last()
        {
            first -= 1;
            let share = left / last.len().max(1);
            for message in *last {
                let message = carry.fitting(message, share, put)?;
                carry.messages.push(message);
            }
        } else {
            carry.messages.extend(units[first..].iter().flat_map(|unit| unit.iter()).map(|message| plain(message)));
        }
        let left_out: usize = units[..first].iter().map(|unit| unit.len()).sum();
        carry.dropped = left_out.saturating_sub(request.iter().count()) as u64;
        Ok(carry)
    }

    /// The message with its long blocks shortened, so that it takes about `room` bytes.
    fn fitting<E>(&mut self, message: &Message, room: usize, put: StoreText<'_, E>) -> Result<Message, E> {
        let mut message = plain(message);
        if size_of(&message) <= room {
            return Ok(message);
        }
        let share = (room / message.content.len().max(1)).max(SHOWN_MIN);
        let pieces = message.content.len();
        // A part of an opaque block means nothing to its provider.
        message.content.retain(|block| !matches!(block, Block::Opaque { .. }) || block_size(block) <= share);
        self.shortened += (pieces - message.content.len()) as u64;
        for block in message.content.iter_mut().filter(|block| block_size(block) > share) {
            self.shortened += 1;
            match block {
                Block::Text { text, blob } => *text = fitted(text, share, blob, put)?,
                // A shortened thought would not match its signature.
                Block::Thinking { text, signature, .. } => {
                    text.clear();
                    *signature = None;
                }
                Block::ToolCall { arguments, blob, .. } => {
                    let whole = match *blob {
                        Some(whole) => whole,
                        None => put(&arguments.to_string())?,
                    };
                    *arguments = json!({"left_out": format!("the whole is in blob {whole}; {READS_BLOBS}")});
                    *blob = Some(whole);
                }
                Block::ToolResult { content, blob, .. } => {
                    *content = Value::String(fitted(&text_of(content), share, blob, put)?);
                }
                Block::Image { .. } | Block::Opaque { .. } => {}
            }
        }
        message.content.retain(|block| !matches!(block, Block::Thinking { text, .. } if text.is_empty()));
        Ok(message)
    }
}

/// The message without the run it belonged to.
fn plain(message: &Message) -> Message {
    Message { run_id: None, step: None, ..message.clone() }
}

/// Groups messages that belong together: an answer of the model with the results of its calls, or one other message.
fn exchanges(messages: &[Arc<Message>]) -> Vec<&[Arc<Message>]> {
    let mut units = Vec::new();
    let mut rest = messages;
    while !rest.is_empty() {
        let results = rest[1..].iter().take_while(|message| message.role == Role::Tool).count();
        let (unit, after) = rest.split_at(1 + results);
        units.push(unit);
        rest = after;
    }
    units
}

/// Where the newest exchanges begin that fit into `room` bytes together, and how many bytes they leave.
fn newest(units: &[&[Arc<Message>]], room: usize) -> (usize, usize) {
    let mut first = units.len();
    let mut left = room;
    while first > 0 && size(units[first - 1]) <= left {
        first -= 1;
        left -= size(units[first]);
    }
    (first, left)
}

/// Whether a message comes from a user, and is not the seed of a successor.
fn is_request(message: &Message) -> bool {
    message.role == Role::User && message.visibility != Visibility::Internal
}

fn size(messages: &[Arc<Message>]) -> usize {
    messages.iter().map(|message| size_of(message)).sum()
}

/// Roughly how many bytes of text a message is in a prompt.
pub(crate) fn size_of(message: &Message) -> usize {
    message.content.iter().map(block_size).sum::<usize>() + 8
}

fn block_size(block: &Block) -> usize {
    match block {
        Block::Text { text, .. } | Block::Thinking { text, .. } => text.len(),
        Block::ToolCall { name, arguments, .. } => name.len() + arguments.to_string().len(),
        Block::ToolResult { content, .. } => text_size(content),
        // What providers count for an image of ordinary size.
        Block::Image { .. } => 6000,
        Block::Opaque { data, .. } => text_size(data),
    }
}

/// The length of a value as text.
fn text_size(value: &Value) -> usize {
    value.as_str().map_or_else(|| value.to_string().len(), str::len)
}

/// A value as the model reads it.
pub(crate) fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// How a model gets what was left out; the tool is [`crate::blobs::READ_TOOL`].
const READS_BLOBS: &str = "the tool `blob_read` reads it in parts";

/// A long text shortened to about `shown` bytes. The whole is stored as a blob, unless the text is already a part of one.
fn fitted<E>(text: &str, shown: usize, blob: &mut Option<Digest>, put: StoreText<'_, E>) -> Result<String, E> {
    if let Some(whole) = blob {
        let (head, _, tail) = ends(text, shown);
        return Ok(format!("{head}\n[… shortened; the whole is in blob {whole}; {READS_BLOBS} …]\n{tail}"));
    }
    let whole = put(text)?;
    *blob = Some(whole);
    Ok(shortened(text, shown, &whole))
}

/// The beginning and the end of a long text, together about `shown` bytes, and the blob that has the whole.
pub(crate) fn shortened(text: &str, shown: usize, blob: &Digest) -> String {
    let (head, left_out, tail) = ends(text, shown);
    let whole = text.len();
    format!("{head}\n[… {left_out} of {whole} bytes left out; the whole is in blob {blob}; {READS_BLOBS} …]\n{tail}")
}

/// The beginning and the end of a text, together about `shown` bytes, and how many bytes are between them.
fn ends(text: &str, shown: usize) -> (&str, usize, &str) {
    let end = text.floor_char_boundary(shown / 2);
    let tail = text.ceil_char_boundary(text.len().saturating_sub(shown / 2)).max(end);
    (&text[..end], tail - end, &text[tail..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_model::CallId;
    use std::convert::Infallible;

    fn says(role: Role, text: &str) -> Arc<Message> {
        Arc::new(Message::text(role, text))
    }

    fn calls(id: &str) -> Arc<Message> {
        let block = Block::tool_call(CallId::new(id).unwrap(), "look", json!({}));
        Arc::new(Message { content: vec![block], ..Message::text(Role::Assistant, "") })
    }

    fn result(id: &str, text: &str) -> Arc<Message> {
        let block = Block::tool_result(CallId::new(id).unwrap(), json!(text));
        Arc::new(Message { content: vec![block], ..Message::text(Role::Tool, "") })
    }

    fn carried(messages: &[Arc<Message>], room: usize) -> (Carryover, Vec<String>) {
        let mut blobs = Vec::new();
        let carry = Carryover::of::<Infallible>(messages, room, &mut |text| {
            blobs.push(text.to_owned());
            Ok(Digest([blobs.len() as u8; 32]))
        });
        (carry.unwrap(), blobs)
    }

    fn roles(carry: &Carryover) -> String {
        let letter = |message: &Message| match message.role {
            Role::System => 's',
            Role::User => 'u',
            Role::Assistant => 'a',
            Role::Tool => 't',
        };
        carry.messages.iter().map(letter).collect()
    }

    #[test]
    fn a_thread_whose_only_user_message_is_the_first_keeps_it_and_its_newest_rounds() {
        let mut messages = vec![says(Role::User, "count the stars")];
        for n in 0..50 {
            messages.extend([calls(&format!("c{n}")), result(&format!("c{n}"), &"x".repeat(100))]);
        }
        let (carry, blobs) = carried(&messages, 700);
        assert_eq!(roles(&carry), "uatatatatat");
        assert_eq!(carry.messages[0].plain_text(), "count the stars");
        assert_eq!((carry.dropped, carry.turns(), blobs.len()), (90, 5, 0));
        assert!(carry.size() <= 700);
    }

    #[test]
    fn the_last_user_message_is_carried_over_however_old_it_is_and_a_seed_does_not_count_as_one() {
        let seed = Message { visibility: Visibility::Internal, ..Message::text(Role::User, "go on") };
        let mut messages = vec![says(Role::User, "count the stars"), says(Role::Assistant, "done")];
        messages.extend([says(Role::User, "now count the moons"), Arc::new(seed)]);
        for n in 0..50 {
            messages.extend([calls(&format!("c{n}")), result(&format!("c{n}"), &"x".repeat(100))]);
        }
        let (carry, _) = carried(&messages, 700);
        assert_eq!(roles(&carry), "uuatatatatat");
        assert_eq!(carry.messages[1].plain_text(), "now count the moons");
        assert_eq!(carry.dropped + carry.messages.len() as u64, messages.len() as u64);
        assert!(carry.size() <= 700);
        // Over several handoffs.
        let again: Vec<_> = carry.messages.into_iter().map(Arc::new).chain(messages[4..].iter().cloned()).collect();
        assert_eq!(carried(&again, 700).0.messages[1].plain_text(), "now count the moons");
        // A long request is shortened, and one among the newest stays in its place.
        messages[2] = says(Role::User, &"m".repeat(5_000));
        let (carry, blobs) = carried(&messages, 2_000);
        assert!(blobs.len() == 1 && carry.size() < 2_300 && roles(&carry).starts_with("uua"), "{}", carry.size());
        messages.push(says(Role::User, "and the suns"));
        assert!(
            roles(&carried(&messages, 700).0).ends_with("tu") && roles(&carried(&messages, 700).0).starts_with("ua")
        );
    }

    #[test]
    fn a_call_is_never_separated_from_its_results() {
        let messages = [
            says(Role::User, "go"),
            calls("a"),
            result("a", &"r".repeat(300)),
            result("b", &"r".repeat(300)),
            calls("d"),
        ];
        // The last unit fits, the one before it does not as a whole.
        let (carry, _) = carried(&messages, 400);
        assert_eq!((roles(&carry).as_str(), carry.dropped), ("ua", 3));
    }

    #[test]
    fn a_text_that_is_too_long_is_shortened_and_the_whole_is_stored() {
        let long = "l".repeat(100_000);
        let messages = [says(Role::User, &long), calls("a"), result("a", &long)];
        let (carry, blobs) = carried(&messages, 4000);
        assert_eq!((roles(&carry).as_str(), carry.shortened, carry.dropped), ("uat", 2, 0));
        assert!(blobs.iter().all(|blob| *blob == long) && blobs.len() == 2);
        assert!(carry.size() < 4600, "{}", carry.size());
        assert!(carry.messages[2].content_bytes().windows(12).any(|text| text == b"bytes left o"));
        assert_eq!(carry.messages[0].content[0].blob(), Some(&Digest([1; 32])));
        assert_eq!(carry.messages[2].content[0].blob(), Some(&Digest([2; 32])));
        // Shortened once more, the blob is still that of the whole text.
        let again: Vec<_> = carry.messages.iter().cloned().map(Arc::new).collect();
        let (shorter, blobs) = carried(&again, 1000);
        assert_eq!((blobs.len(), shorter.shortened), (0, 2));
        assert_eq!(shorter.messages[2].content[0].blob(), Some(&Digest([2; 32])));
        assert!(String::from_utf8(shorter.messages[2].content_bytes()).unwrap().contains(&Digest([2; 32]).to_string()));
    }

    #[test]
    fn opaque_data_is_carried_over_whole_or_not_at_all() {
        let opaque = |bytes| Block::Opaque { provider: "p".to_owned(), data: json!({"sealed": "e".repeat(bytes)}) };
        let answer = |bytes| {
            let content = vec![opaque(bytes), Block::text("l".repeat(5_000))];
            Arc::new(Message { content, ..Message::text(Role::Assistant, "") })
        };
        let (carry, blobs) = carried(&[says(Role::User, "go"), answer(5_000)], 2_000);
        assert!(matches!(&carry.messages[1].content[..], [Block::Text { blob: Some(_), .. }]));
        assert_eq!((carry.shortened, blobs.len()), (2, 1));
        let (carry, _) = carried(&[says(Role::User, "go"), answer(100)], 2_000);
        assert_eq!((&carry.messages[1].content[0], carry.shortened), (&opaque(100), 1));
        // If it fits, it counts.
        let (carry, _) = carried(&[says(Role::User, "go"), answer(5_000)], 20_000);
        assert!(carry.size() > 10_000 && carry.shortened == 0);
    }

    #[test]
    fn however_little_room_there_is_the_last_message_is_carried_over() {
        let messages = [says(Role::User, "task"), says(Role::Assistant, "yes"), says(Role::User, &"é".repeat(5000))];
        let (carry, blobs) = carried(&messages, 0);
        assert_eq!((roles(&carry).as_str(), carry.dropped, blobs.len()), ("uu", 1, 1));
        let (carry, _) = carried(&[], 100);
        assert_eq!(carry, Carryover::default());
    }
}
