//! The bounded queue of one subscriber.
//!
//! ```text
//! full, and a draft comes         the draft is dropped
//! full, and anything else comes   all drafts in the queue are dropped; if it is still full, everything in it
//! ```
//!
//! Dropped events are counted in one `Missed`, which takes the place of the first dropped event, or an earlier one. Commits are only dropped
//! together with everything else, so the lines of a thread that follow a `Missed` are in order.

use std::collections::VecDeque;

use selvedge_model::{Draft, ThreadId};

use super::{MISSED_THREADS_MAX, RunEvent};

/// The most events in the queue of one subscriber.
pub const QUEUE_EVENTS_MAX: usize = 1024;
/// The most bytes of drafts in the queue of one subscriber.
pub const QUEUE_DRAFT_BYTES_MAX: usize = 1024 * 1024;
/// The most bytes in the queue of one subscriber, if it has more than one event. Commits count as in the log; subscribers share their
/// events.
pub const QUEUE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The assumed size of an event besides its text.
const EVENT_BYTES: usize = 128;

/// The queue of one subscriber.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    slots: VecDeque<Slot>,
    bytes: usize,
    draft_bytes: usize,
    /// What was dropped and is not reported yet; its place in the queue is the one `Slot::Missed`.
    missed: Option<Missed>,
}

#[derive(Debug)]
enum Slot {
    Event { event: RunEvent, bytes: usize },
    Missed,
}

#[derive(Debug, Default)]
struct Missed {
    drafts: u64,
    commits: u64,
    others: u64,
    first_lines: std::collections::BTreeMap<ThreadId, u64>,
    has_unlisted: bool,
}

impl Missed {
    fn count(&mut self, event: &RunEvent) {
        match event {
            RunEvent::Draft { .. } => self.drafts += 1,
            RunEvent::Committed { thread, first_line, .. } => self.count_commit(thread, *first_line),
            _ => self.others += 1,
        }
    }

    fn count_commit(&mut self, thread: &ThreadId, first_line: u64) {
        self.commits += 1;
        if let Some(first) = self.first_lines.get_mut(thread) {
            *first = first_line.min(*first);
        } else if self.first_lines.len() < MISSED_THREADS_MAX {
            self.first_lines.insert(thread.clone(), first_line);
        } else {
            self.has_unlisted = true;
        }
    }

    fn into_event(self) -> RunEvent {
        let Self { drafts, commits, others, first_lines, has_unlisted } = self;
        RunEvent::Missed { drafts, commits, others, first_lines, has_unlisted }
    }
}

impl Backlog {
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Adds an event; `commit_bytes` is the length that a commit added to its log.
    pub(crate) fn push(&mut self, event: &RunEvent, commit_bytes: usize) {
        let bytes = EVENT_BYTES + commit_bytes + text_bytes(event);
        if matches!(event, RunEvent::Draft { .. }) {
            if !self.has_room(bytes) || self.draft_bytes + bytes > QUEUE_DRAFT_BYTES_MAX {
                return self.miss().count(event);
            }
            self.draft_bytes += bytes;
        } else if !self.has_room(bytes) {
            self.drop_drafts();
            if !self.has_room(bytes) {
                self.drop_all();
            }
        }
        self.bytes += bytes;
        self.slots.push_back(Slot::Event { event: event.clone(), bytes });
    }

    /// Counts a commit that could not be published.
    pub(crate) fn miss_commit(&mut self, thread: &ThreadId, first_line: u64) {
        self.drop_all();
        self.miss().count_commit(thread, first_line);
    }

    /// Takes the oldest event.
    pub(crate) fn pop(&mut self) -> Option<RunEvent> {
        match self.slots.pop_front()? {
            Slot::Event { event, bytes } => {
                self.bytes -= bytes;
                if matches!(event, RunEvent::Draft { .. }) {
                    self.draft_bytes -= bytes;
                }
                Some(event)
            }
            Slot::Missed => self.missed.take().map(Missed::into_event),
        }
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.slots.len() < QUEUE_EVENTS_MAX && self.bytes + bytes <= QUEUE_BYTES_MAX
    }

    /// The count of missed events; it gets a place at the end of the queue if it has none yet.
    fn miss(&mut self) -> &mut Missed {
        if self.missed.is_none() {
            self.slots.push_back(Slot::Missed);
        }
        self.missed.get_or_insert_default()
    }

    fn drop_drafts(&mut self) {
        if self.draft_bytes > 0 {
            self.drop_where(|event| matches!(event, RunEvent::Draft { .. }));
        }
    }

    fn drop_all(&mut self) {
        self.drop_where(|_| true);
    }

    fn drop_where(&mut self, is_dropped: fn(&RunEvent) -> bool) {
        let slots = std::mem::take(&mut self.slots);
        let mut missed = self.missed.take();
        let mut has_place = false;
        self.bytes = 0;
        self.draft_bytes = 0;
        for slot in slots {
            match slot {
                Slot::Event { event, bytes } if !is_dropped(&event) => {
                    self.bytes += bytes;
                    if matches!(event, RunEvent::Draft { .. }) {
                        self.draft_bytes += bytes;
                    }
                    self.slots.push_back(Slot::Event { event, bytes });
                    continue;
                }
                Slot::Event { event, .. } => missed.get_or_insert_default().count(&event),
                Slot::Missed => {}
            }
            if !std::mem::replace(&mut has_place, true) {
                self.slots.push_back(Slot::Missed);
            }
        }
        self.missed = missed;
    }
}

/// How many bytes of text an event has that are not counted as part of a commit.
fn text_bytes(event: &RunEvent) -> usize {
    match event {
        RunEvent::Draft {
            draft: Draft::Text { text } | Draft::Thinking { text } | Draft::Arguments { text, .. },
            ..
        } => text.len(),
        RunEvent::Calling { arguments, .. } => value_bytes(arguments),
        RunEvent::Retrying { why, .. } | RunEvent::Notice { why, .. } => why.len(),
        _ => 0,
    }
}

fn value_bytes(value: &serde_json::Value) -> usize {
    use serde_json::Value;
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| size_of::<Value>() + value_bytes(item)).sum(),
        Value::Object(fields) => {
            fields.iter().map(|(key, item)| key.len() + size_of::<Value>() + value_bytes(item)).sum()
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use selvedge_model::{Reason, RunId};

    use super::*;

    fn thread(index: usize) -> ThreadId {
        ThreadId::generate("backlog", &format!("{index:012x}"))
    }

    fn draft(number: u64, bytes: usize) -> RunEvent {
        let text = format!("{}{number}", "0".repeat(bytes));
        let run = RunId::new("run").unwrap();
        RunEvent::Draft { thread: thread(0), run, attempt: 1, draft: Draft::Text { text } }
    }

    /// A commit of one event and its checkpoint.
    fn commit(of: usize, number: u64) -> RunEvent {
        RunEvent::Committed {
            thread: thread(of),
            run: None,
            version: number + 1,
            reason: Reason::Lifecycle,
            first_line: number * 2,
            events: std::sync::Arc::from([]),
        }
    }

    fn notice() -> RunEvent {
        RunEvent::Notice { thread: thread(0), kind: super::super::NoticeKind::Dropped, why: "so".to_owned() }
    }

    /// What was published, and what a reader received of it.
    #[derive(Default)]
    struct Counts {
        backlog: Backlog,
        drafts: u64,
        commits: [u64; 3],
        others: u64,
        next_draft: u64,
        seen_drafts: u64,
        missed_drafts: u64,
        /// The next line of each thread that was neither seen nor reported as missed.
        next_line: [u64; 3],
        seen_commits: u64,
        missed_commits: u64,
        seen_others: u64,
        missed_others: u64,
    }

    impl Counts {
        fn publish(&mut self, kind: u8, bytes: usize) {
            match kind {
                0..=3 => {
                    self.backlog.push(&draft(self.drafts, bytes), 0);
                    self.drafts += 1;
                }
                4..=6 => {
                    let of = usize::from(kind) - 4;
                    self.backlog.push(&commit(of, self.commits[of]), bytes * 64);
                    self.commits[of] += 1;
                }
                _ => {
                    self.backlog.push(&notice(), 0);
                    self.others += 1;
                }
            }
            let backlog = &self.backlog;
            assert!(backlog.slots.len() <= QUEUE_EVENTS_MAX + 1);
            assert!(backlog.bytes <= QUEUE_BYTES_MAX && backlog.draft_bytes <= QUEUE_DRAFT_BYTES_MAX);
        }

        fn receive(&mut self) -> bool {
            let Some(event) = self.backlog.pop() else { return false };
            match event {
                RunEvent::Draft { draft: Draft::Text { text }, .. } => {
                    let number: u64 = text.parse().unwrap();
                    assert!(number >= self.next_draft, "in order");
                    self.next_draft = number + 1;
                    self.seen_drafts += 1;
                    assert!(number < self.seen_drafts + self.missed_drafts, "a draft is missing without a `Missed`");
                }
                RunEvent::Committed { thread: of, first_line, .. } => {
                    let of = (0..3).find(|index| thread(*index) == of).unwrap();
                    assert_eq!(first_line, self.next_line[of], "a commit is missing without a `Missed`");
                    self.next_line[of] = first_line + 2;
                    self.seen_commits += 1;
                }
                RunEvent::Missed { drafts, commits, others, first_lines, has_unlisted } => {
                    assert!(drafts + commits + others > 0 && !has_unlisted);
                    self.missed_drafts += drafts;
                    self.missed_commits += commits;
                    self.missed_others += others;
                    for (of, first_line) in first_lines {
                        let of = (0..3).find(|index| thread(*index) == of).unwrap();
                        assert_eq!(first_line, self.next_line[of], "it begins at the reader's position");
                        // The reader reads the log from there to where the queue continues.
                        let queued =
                            self.backlog.slots.iter().find_map(|slot| match slot {
                                Slot::Event {
                                    event: RunEvent::Committed { thread: other, first_line, .. }, ..
                                } if *other == thread(of) => Some(*first_line),
                                _ => None,
                            });
                        self.next_line[of] = queued.unwrap_or(self.commits[of] * 2);
                    }
                }
                _ => self.seen_others += 1,
            }
            true
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_event_is_lost_without_a_missed(
            steps in prop::collection::vec((0u8..12, 1usize..700, 1usize..4000), 1..60)
        ) {
            let mut books = Counts::default();
            for (kind, times, bytes) in steps {
                for _ in 0..times {
                    match kind {
                        0..8 => books.publish(kind, bytes),
                        8 | 9 => books.publish(u8::try_from(times % 8).unwrap(), bytes),
                        _ => _ = books.receive(),
                    }
                }
            }
            while books.receive() {}
            prop_assert_eq!(books.seen_drafts + books.missed_drafts, books.drafts);
            prop_assert_eq!(books.seen_commits + books.missed_commits, books.commits.iter().sum::<u64>());
            prop_assert_eq!(books.seen_others + books.missed_others, books.others);
            let backlog = books.backlog;
            prop_assert!(backlog.bytes == 0 && backlog.draft_bytes == 0 && backlog.missed.is_none());
        }
    }

    #[test]
    fn drafts_are_dropped_first_and_then_everything() {
        let mut backlog = Backlog::default();
        backlog.push(&commit(0, 0), 0);
        for number in 1..QUEUE_EVENTS_MAX as u64 {
            backlog.push(&draft(number, 1), 0);
        }
        // A draft that finds no room is dropped.
        backlog.push(&draft(0, 1), 0);
        assert_eq!(backlog.slots.len(), QUEUE_EVENTS_MAX + 1);
        // A commit that finds none replaces all drafts.
        backlog.push(&commit(0, 1), 0);
        assert_eq!(backlog.slots.len(), 3);
        assert_eq!(backlog.pop(), Some(commit(0, 0)));
        let missed = |drafts, commits, first_lines| RunEvent::Missed {
            drafts,
            commits,
            others: 0,
            first_lines,
            has_unlisted: false,
        };
        assert_eq!(backlog.pop(), Some(missed(QUEUE_EVENTS_MAX as u64, 0, Default::default())));
        assert_eq!(backlog.pop(), Some(commit(0, 1)));
        // If the queue has only commits, all of them are dropped, and the newest stays.
        for number in 2..2 + QUEUE_EVENTS_MAX as u64 {
            backlog.push(&commit(0, number), 0);
        }
        backlog.push(&commit(0, 5000), 0);
        let first_lines = [(thread(0), 4)].into_iter().collect();
        assert_eq!(backlog.pop(), Some(missed(0, QUEUE_EVENTS_MAX as u64, first_lines)));
        assert_eq!((backlog.pop(), backlog.pop()), (Some(commit(0, 5000)), None));
    }

    #[test]
    fn bytes_are_bounded_and_one_event_of_any_size_is_let_through() {
        let mut backlog = Backlog::default();
        backlog.push(&draft(0, QUEUE_DRAFT_BYTES_MAX + 1), 0);
        assert!(matches!(backlog.pop(), Some(RunEvent::Missed { drafts: 1, .. })));
        backlog.push(&commit(0, 0), QUEUE_BYTES_MAX / 2);
        backlog.push(&commit(0, 1), QUEUE_BYTES_MAX * 2);
        assert!(matches!(backlog.pop(), Some(RunEvent::Missed { commits: 1, .. })));
        assert_eq!((backlog.pop(), backlog.pop()), (Some(commit(0, 1)), None));
    }

    #[test]
    fn a_missed_says_that_there_are_more_threads_than_it_lists() {
        let mut backlog = Backlog::default();
        for index in 0..=MISSED_THREADS_MAX {
            backlog.push(&commit(index, 0), 0);
        }
        for index in 0..QUEUE_EVENTS_MAX {
            backlog.push(&commit(MISSED_THREADS_MAX + 1 + index, 0), 0);
        }
        let Some(RunEvent::Missed { first_lines, has_unlisted: true, .. }) = backlog.pop() else { panic!() };
        assert_eq!(first_lines.len(), MISSED_THREADS_MAX);
    }
}
