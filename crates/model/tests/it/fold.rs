//! Folding in one pass equals folding in pieces, for any events; an event that is refused changes nothing.

use proptest::prelude::*;
use selvedge_model::changeset::Changeset;
use selvedge_model::event::{Checkpoint, ManifestChanged, Snapshot, ThreadCreated};
use selvedge_model::{
    AgentId, Digest, Event, LogId, Message, MessageId, NewThread, Patch, Reason, Role, RunId, RunMeta, Status, Thread,
    ThreadId, Timestamp,
};
use serde_json::json;

fn id() -> ThreadId {
    ThreadId::new("folded").unwrap()
}

fn birth() -> Event {
    let thread = NewThread::of(AgentId::new("scribe").unwrap());
    let log_id = LogId::new("0".repeat(32)).unwrap();
    Event::ThreadCreated(Box::new(ThreadCreated { format: 1, log_id, segment: 0, thread }))
}

fn checkpoint(version: u64, changeset: &Changeset) -> Event {
    Event::Checkpoint(Box::new(Checkpoint {
        version,
        reason: changeset.reason,
        key: None,
        request: None,
        run_id: changeset.run_id.clone(),
        parent_run_id: None,
        turn: changeset.turn,
        epoch: 0,
        log_id: LogId::new("0".repeat(32)).unwrap(),
        segment: 0,
        byte_offset: 0,
        hash: Digest([0; 32]),
        with: Vec::new(),
        settled: false,
        signer: Digest([0; 32]),
        sig: String::new(),
    }))
}

/// Changesets of every kind, many of which contradict what came before them.
fn changeset() -> impl Strategy<Value = Changeset> {
    let run = (0..3_u8).prop_map(|number| RunId::new(format!("r{number}")).unwrap());
    let messages =
        proptest::collection::vec((proptest::option::of(0..6_u8), "[a-c]{0,3}"), 0..3).prop_map(|messages| {
            let message = |(id, text): (Option<u8>, String)| Message {
                id: id.map(|id| MessageId::new(format!("m{id}")).unwrap()),
                ..Message::text(Role::User, text)
            };
            messages.into_iter().map(message).collect::<Vec<_>>()
        });
    let op = prop_oneof![
        Just(json!({"op": "set", "path": ["n"], "value": 0})),
        Just(json!({"op": "increment", "path": ["n"], "amount": 1})),
        Just(json!({"op": "append", "path": ["list"], "value": 1})),
        Just(json!({"op": "delete", "path": ["n"]})),
    ];
    let patches = proptest::collection::vec(op, 0..3).prop_map(|ops| {
        let patch = |op| serde_json::from_value::<Patch>(json!({"ops": [op]})).unwrap();
        ops.into_iter().map(patch).collect::<Vec<_>>()
    });
    let meta = (0..4_u8).prop_map(|kind| {
        let started = RunMeta::started(AgentId::new("scribe").unwrap(), "user");
        match kind {
            0 => None,
            1 => Some(started),
            2 => Some(started.finished("natural")),
            _ => Some(started.finished("error")),
        }
    });
    let event = (0..4_u8).prop_map(|kind| match kind {
        0 => Vec::new(),
        1 => vec![ManifestChanged { title: Some("t".to_owned()), ..Default::default() }],
        2 => vec![ManifestChanged { status: Some(Status::Running), ..Default::default() }],
        _ => vec![ManifestChanged { status: Some(Status::Cancelled), ..Default::default() }],
    });
    let snapshot = proptest::option::weighted(0.2, Just(json!({"n": 7})));
    (run, messages, patches, meta, event, snapshot).prop_map(|(run, messages, patches, run_meta, events, snapshot)| {
        Changeset {
            run_id: Some(run),
            run_meta,
            messages,
            patches,
            snapshot,
            events: events.into_iter().map(Event::ManifestChanged).collect(),
            ..Changeset::empty(Reason::UserMessage)
        }
    })
}

/// The accepted events, in order, including checkpoints.
fn events(changesets: Vec<Changeset>) -> Vec<Event> {
    let mut kept = vec![birth(), checkpoint(0, &Changeset::empty(Reason::Lifecycle))];
    let mut so_far = fold(&kept);
    let mut version = 0;
    for changeset in changesets {
        let mut tried = so_far.clone();
        let mut added = changeset.clone().into_events();
        added.push(checkpoint(version + 1, &changeset));
        if added.iter().all(|event| tried.apply(event, Timestamp::from_micros(1)).is_ok()) {
            kept.extend(added);
            so_far = tried;
            version += 1;
        }
    }
    kept
}

fn fold(events: &[Event]) -> Thread {
    let mut thread = Thread::begin(&id(), &events[0], Timestamp::from_micros(1)).unwrap();
    for event in &events[1..] {
        thread.apply(event, Timestamp::from_micros(1)).unwrap();
    }
    thread
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn folding_in_one_pass_equals_folding_in_pieces(
        changesets in proptest::collection::vec(changeset(), 0..12),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let events = events(changesets);
        let whole = fold(&events);
        let mut cuts: Vec<_> = cuts.iter().map(|cut| 1 + cut.index(events.len())).collect();
        cuts.sort_unstable();
        let mut pieces = Thread::begin(&id(), &events[0], Timestamp::from_micros(1)).unwrap();
        let mut from = 1;
        for to in cuts.into_iter().chain([events.len()]) {
            // Each piece continues from a copy, like a reader that continues from an earlier fold.
            let mut next = pieces.clone();
            for event in &events[from.min(to)..to] {
                next.apply(event, Timestamp::from_micros(1)).unwrap();
            }
            pieces = next;
            from = to.max(from);
        }
        prop_assert_eq!(pieces, whole);
    }

    #[test]
    fn events_that_were_written_and_read_back_fold_to_the_same_thread(changesets in proptest::collection::vec(changeset(), 0..12)) {
        let events = events(changesets);
        let read: Vec<Event> = events
            .iter()
            .map(|event| serde_json::from_str(&serde_json::to_string(event).unwrap()).unwrap())
            .collect();
        prop_assert_eq!(fold(&read), fold(&events));
    }

    #[test]
    fn a_changeset_is_rebuilt_from_its_events(changeset in changeset()) {
        let mut events = changeset.clone().into_events();
        events.push(checkpoint(1, &changeset));
        let mut back = Changeset::from_events(events).unwrap();
        // A message without a run belongs to the run of its changeset.
        for message in &mut back.messages {
            prop_assert_eq!(&message.run_id, &changeset.run_id);
            message.run_id = None;
        }
        prop_assert_eq!(back, changeset);
    }

    #[test]
    fn a_refused_event_changes_nothing(changesets in proptest::collection::vec(changeset(), 1..8)) {
        let kept = events(changesets.clone());
        let before = fold(&kept);
        for event in changesets.into_iter().flat_map(Changeset::into_events) {
            let mut after = before.clone();
            if after.apply(&event, Timestamp::from_micros(1)).is_err() {
                prop_assert_eq!(&after, &before);
            }
        }
        let second_birth = before.clone().apply(&birth(), Timestamp::from_micros(1));
        prop_assert!(second_birth.is_err());
        let not_born = Thread::begin(&id(), &Event::Snapshot(Snapshot { state: json!(1) }), Timestamp::from_micros(1));
        prop_assert!(not_born.is_err());
    }
}
