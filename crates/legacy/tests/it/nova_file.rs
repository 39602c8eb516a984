//! Files of the older form in every state that a crash can leave, with the exact result of reading them.

use std::io::BufRead;
use std::path::Path;

use proptest::prelude::*;
use selvedge_legacy::nova_file::{Counts, Event, EventKind, Reader, Remark, RemarkKind, write_event, write_manifest};
use selvedge_log::hash::sha256;

fn fixture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/nova");
    std::fs::read(folder.join(format!("{name}.jsonl"))).unwrap()
}

fn events(reader: &mut Reader<impl BufRead>) -> Vec<Event> {
    let mut found = Vec::new();
    while let Some(line) = reader.next_line().unwrap() {
        found.extend(line.events.into_iter().map(|found| found.event));
    }
    found
}

/// The content of a fixture: the counts of each kind, and the remarks.
#[track_caller]
fn check(name: &str, expected: Counts) -> Vec<Event> {
    let bytes = fixture(name);
    let mut reader = Reader::new(bytes.as_slice()).unwrap();
    let found = events(&mut reader);
    let mut counts = reader.counts().clone();
    if expected.remarks.is_empty() {
        counts.remarks.clear();
    }
    assert_eq!(counts, expected, "{name}");
    check_sums(&bytes, &reader, found.len() as u64);
    found
}

#[track_caller]
fn check_sums(bytes: &[u8], reader: &Reader<impl BufRead>, yielded: u64) {
    let counts = reader.counts();
    let ends = bytes.iter().filter(|byte| **byte == b'\n').count();
    let open = usize::from(!bytes.is_empty() && !bytes.ends_with(b"\n"));
    assert_eq!(counts.lines, (ends + open) as u64);
    assert_eq!(counts.lines, counts.blank + counts.clean + counts.repaired() + counts.lost);
    let by_kind = counts.messages + counts.legacy + counts.tool_uses + counts.assistant_texts;
    assert_eq!(counts.parsed, by_kind + counts.results + counts.opaque);
    assert_eq!(counts.parsed, yielded);
    assert!(counts.parsed + counts.manifests >= counts.clean + counts.repaired());
    assert!(counts.skipped() >= counts.lost);
    assert_eq!((counts.skipped() + counts.repaired() == 0), counts.remarks.is_empty());
    assert!(counts.repaired_value <= counts.replaced_text + counts.replaced_number);
    let head = usize::try_from(reader.head_bytes()).unwrap();
    assert_eq!(reader.head_bytes() + reader.events_bytes(), bytes.len() as u64);
    assert_eq!(reader.head_hash(), sha256(&bytes[..head]));
    assert_eq!(reader.events_hash(), sha256(&bytes[head..]));
}

fn remarks(places: &[(u64, RemarkKind)]) -> Vec<Remark> {
    places.iter().map(|(line, what)| Remark { line: *line, what: *what }).collect()
}

#[test]
fn a_sound_file_is_read_completely() {
    let expected = Counts { lines: 6, clean: 6, manifests: 1, parsed: 5, messages: 2, ..Counts::default() };
    let found = check("sound", Counts { tool_uses: 1, assistant_texts: 1, results: 1, ..expected });
    let kinds: Vec<_> = found.iter().map(Event::kind).collect();
    use EventKind::{AssistantText, Message, Result, ToolUse};
    assert_eq!(kinds, [Message, AssistantText, ToolUse, Message, Result]);
    assert_eq!(found[0].text(), Some("When do I cut it back?"));
    assert_eq!(found[0].timestamp(), Some("2026-03-01T08:01:00.000Z"));
    let reader = Reader::new(fixture("sound").leak() as &[u8]).unwrap();
    let manifest = reader.manifest().unwrap();
    assert_eq!((manifest.id(), manifest.agent_id()), (Some("4f6a0c1d2e3b"), Some("gardener")));
    assert_eq!((manifest.session_id(), manifest.task_id()), (Some("s-17"), Some("task-9")));
}

#[test]
fn lines_without_a_type_are_messages_and_the_channel_is_ignored() {
    let expected = Counts { lines: 4, clean: 4, manifests: 1, parsed: 3, legacy: 2, messages: 1, ..Counts::default() };
    check("legacy", expected);
    let reader = Reader::new(fixture("legacy").leak() as &[u8]).unwrap();
    let manifest = reader.manifest().unwrap();
    assert!(!manifest.fields().contains_key("channel"));
    assert_eq!(manifest.id(), None);
}

#[test]
fn unknown_keys_and_unknown_types_are_kept() {
    let expected = Counts { lines: 5, clean: 5, manifests: 1, parsed: 4, messages: 2, opaque: 2, ..Counts::default() };
    let found = check("unknown", expected);
    assert_eq!(found[0].fields()["attachments"][0], "leaf.png");
    assert_eq!((found[1].kind(), &found[1].fields()["from"]), (EventKind::Opaque, &"ann".into()));
    let reader = Reader::new(fixture("unknown").leak() as &[u8]).unwrap();
    assert_eq!(reader.manifest().unwrap().fields()["nested"]["a"][0], 1);
}

#[test]
fn a_torn_last_line_is_skipped() {
    let expected = Counts { lines: 3, clean: 2, lost: 1, manifests: 1, parsed: 1, messages: 1, ..Counts::default() };
    check("torn_end", Counts { skipped_torn: 1, remarks: remarks(&[(3, RemarkKind::Torn)]), ..expected });
}

#[test]
fn a_last_line_that_lacks_only_its_end_is_read() {
    let expected = Counts { lines: 3, clean: 3, manifests: 1, parsed: 2, messages: 2, ..Counts::default() };
    check("no_final_newline", expected);
    let mut reader = Reader::new(fixture("no_final_newline").leak() as &[u8]).unwrap();
    assert!(reader.next_line().unwrap().unwrap().ended);
    let last = reader.next_line().unwrap().unwrap();
    assert_eq!((last.ended, last.parts, last.number), (false, 1, 3));
}

#[test]
fn an_event_appended_to_a_torn_line_is_separated() {
    let expected = Counts { lines: 4, clean: 3, manifests: 1, parsed: 3, messages: 2, legacy: 1, ..Counts::default() };
    let places = remarks(&[(3, RemarkKind::Torn), (3, RemarkKind::Joined)]);
    check("glued_torn", Counts { repaired_joined: 1, skipped_torn: 1, remarks: places, ..expected });
}

#[test]
fn complete_events_on_one_line_are_separated_in_order() {
    let expected = Counts { lines: 3, clean: 2, repaired_joined: 1, manifests: 1, parsed: 4, ..Counts::default() };
    let found = check("glued_whole", Counts { messages: 2, assistant_texts: 1, results: 1, ..expected });
    assert_eq!(found[2].text(), Some("Before the buds open."));
    let mut reader = Reader::new(fixture("glued_whole").leak() as &[u8]).unwrap();
    let line = reader.next_line().unwrap().unwrap();
    assert_eq!(line.events.iter().map(|found| (found.line, found.part)).collect::<Vec<_>>(), [(2, 1), (2, 2), (2, 3)]);
}

#[test]
fn an_event_that_may_belong_to_a_torn_one_is_not_taken() {
    let expected = Counts { lines: 4, clean: 3, lost: 1, manifests: 1, parsed: 2, messages: 2, ..Counts::default() };
    check("glued_ambiguous", Counts { skipped_torn: 1, ..expected });
}

#[test]
fn an_event_on_the_line_of_the_manifest_is_separated() {
    let expected = Counts { lines: 2, clean: 1, manifests: 1, parsed: 2, messages: 2, ..Counts::default() };
    check("glued_manifest", Counts { repaired_joined: 1, ..expected });
    let bytes = fixture("glued_manifest");
    let mut reader = Reader::new(bytes.as_slice()).unwrap();
    assert_eq!((reader.start().line, reader.start().part), (1, 2));
    let first = reader.next_line().unwrap().unwrap();
    assert_eq!((first.start, first.events[0].part), (0, 2));
    let head = usize::try_from(reader.head_bytes()).unwrap();
    let mut behind = Reader::starting_at(&bytes[head..], reader.start());
    assert_eq!(behind.next_line().unwrap().unwrap(), first);
}

#[test]
fn zeros_are_skipped_and_what_is_beside_them_is_read() {
    let expected = Counts { lines: 6, clean: 2, repaired_nul: 1, repaired_joined: 1, lost: 2, ..Counts::default() };
    let expected = Counts { manifests: 1, parsed: 3, messages: 2, legacy: 1, ..expected };
    let places = [
        (3, RemarkKind::Nul),
        (4, RemarkKind::Nul),
        (5, RemarkKind::Torn),
        (5, RemarkKind::Nul),
        (5, RemarkKind::Joined),
        (6, RemarkKind::Nul),
    ];
    check("nul", Counts { skipped_nul: 4, skipped_torn: 1, remarks: remarks(&places), ..expected });
}

#[test]
fn blank_lines_are_ignored_even_before_the_manifest() {
    let expected = Counts { lines: 8, blank: 5, clean: 3, manifests: 1, parsed: 2, messages: 2, ..Counts::default() };
    check("blank", expected);
}

#[test]
fn invalid_utf8_is_skipped() {
    let expected = Counts { lines: 4, clean: 3, lost: 1, manifests: 1, parsed: 2, messages: 2, ..Counts::default() };
    check("not_utf8", Counts { skipped_invalid: 1, remarks: remarks(&[(3, RemarkKind::Invalid)]), ..expected });
}

/// A message that ended in half an emoji was lost, and an integer beyond 64 bits was rounded and counted as clean.
#[test]
fn values_without_an_exact_representation_are_replaced_and_reported() {
    let expected = Counts { lines: 5, clean: 1, repaired_value: 3, repaired_joined: 1, ..Counts::default() };
    let expected = Counts { manifests: 1, parsed: 5, messages: 2, results: 2, tool_uses: 1, ..expected };
    let expected = Counts { replaced_text: 2, replaced_number: 2, ..expected };
    let places = [
        (1, RemarkKind::Surrogate),
        (2, RemarkKind::Surrogate),
        (4, RemarkKind::Number),
        (5, RemarkKind::Number),
        (5, RemarkKind::Joined),
    ];
    let found = check("odd_values", Counts { remarks: remarks(&places), ..expected });
    assert_eq!(found[0].text(), Some("cut in the middle: \u{fffd}"));
    assert_eq!(found[1].fields()["inputTokens"], u64::MAX);
    assert_eq!(found[3].text(), Some("whole: \u{1f350}"));
}

#[test]
fn objects_that_are_not_events_are_skipped() {
    let expected = Counts { lines: 10, clean: 3, lost: 7, manifests: 1, parsed: 2, messages: 2, ..Counts::default() };
    check("bad_json", Counts { skipped_invalid: 7, ..expected });
}

#[test]
fn a_file_without_a_readable_manifest_still_has_its_events() {
    let expected = Counts { lines: 3, clean: 2, lost: 1, parsed: 2, messages: 2, skipped_torn: 1, ..Counts::default() };
    check("torn_manifest", expected);
    check("no_manifest", Counts { lines: 2, clean: 2, parsed: 2, messages: 1, legacy: 1, ..Counts::default() });
    check("manifest_only", Counts { lines: 1, clean: 1, manifests: 1, ..Counts::default() });
    assert!(Reader::new(fixture("torn_manifest").as_slice()).unwrap().manifest().is_none());
    assert_eq!(Reader::new(fixture("no_manifest").as_slice()).unwrap().head_bytes(), 0);
}

#[test]
fn a_line_that_is_too_long_is_skipped_and_not_stored() {
    let mut bytes = fixture("manifest_only");
    bytes.extend_from_slice(br#"{"role":"user","timestamp":"t","text":""#);
    bytes.resize(bytes.len() + 9 * 1024 * 1024, b'x');
    bytes.extend_from_slice(b"\"}\n{\"role\":\"user\",\"text\":\"after\",\"timestamp\":\"t\"}\n");
    let mut reader = Reader::new(bytes.as_slice()).unwrap();
    assert_eq!(events(&mut reader).len(), 1);
    let expected = Counts { lines: 3, clean: 2, lost: 1, manifests: 1, parsed: 1, legacy: 1, ..Counts::default() };
    let expected = Counts { skipped_long: 1, remarks: remarks(&[(2, RemarkKind::Long)]), ..expected };
    assert_eq!(reader.counts(), &expected);
    check_sums(&bytes, &reader, 1);
}

#[test]
fn zeros_of_any_length_are_one_run() {
    let mut bytes = fixture("manifest_only");
    bytes.resize(bytes.len() + 20 * 1024 * 1024, 0);
    bytes.extend_from_slice(b"{\"role\":\"user\",\"text\":\"after\",\"timestamp\":\"t\"}\n");
    let mut reader = Reader::new(bytes.as_slice()).unwrap();
    assert_eq!(events(&mut reader).len(), 1);
    assert_eq!((reader.counts().repaired_nul, reader.counts().skipped_nul), (1, 1));
    check_sums(&bytes, &reader, 1);
}

#[test]
fn the_hash_at_a_mark_is_found_while_reading() {
    let bytes = fixture("glued_torn");
    let head = usize::try_from(Reader::new(bytes.as_slice()).unwrap().head_bytes()).unwrap();
    for mark in 0..=bytes.len() - head {
        let mut reader = Reader::marking(bytes.as_slice(), Some(mark as u64)).unwrap();
        events(&mut reader);
        assert_eq!(reader.marked_hash(), Some(sha256(&bytes[head..head + mark])));
    }
    let mut reader = Reader::marking(bytes.as_slice(), Some((bytes.len() - head + 1) as u64)).unwrap();
    events(&mut reader);
    assert_eq!(reader.marked_hash(), None);
}

fn normalised(bytes: &[u8]) -> Vec<u8> {
    let mut reader = Reader::new(bytes).unwrap();
    let mut out = Vec::new();
    if let Some(manifest) = reader.manifest() {
        write_manifest(&mut out, manifest).unwrap();
    }
    events(&mut reader).iter().for_each(|event| write_event(&mut out, event).unwrap());
    out
}

#[test]
fn a_sound_file_is_already_normalised_and_every_other_one_is_after_one_pass() {
    assert_eq!(normalised(&fixture("sound")), fixture("sound"));
    let escapes = String::from_utf8(normalised(&fixture("escapes"))).unwrap();
    let last = escapes.lines().last().unwrap();
    let text = r#""text":"line\nbreak ä🌱 / \u0001""#;
    let expected = format!(
        r#"{{"type":"message","role":"user",{text},"timestamp":"2026-03-01T08:01:00.000Z","n":[1.0,2000.0,-0.0]}}"#
    );
    assert_eq!(last, expected);
    for name in ["legacy", "unknown", "glued_torn", "glued_whole", "nul", "blank", "bad_json", "escapes"] {
        let once = normalised(&fixture(name));
        assert_eq!(normalised(&once), once, "{name}");
    }
}

/// Bytes as crashes and editors leave them: pieces of sound files, cut, doubled and mixed with anything.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let names = ["sound", "legacy", "unknown", "glued_torn", "nul", "bad_json", "no_manifest", "escapes"];
    let cut = (prop::sample::select(names.to_vec()), any::<prop::sample::Index>(), any::<prop::sample::Index>());
    let piece = prop_oneof![
        4 => cut.prop_map(|(name, from, to)| {
            let bytes = fixture(name);
            let from = from.index(bytes.len());
            let to = to.index(bytes.len() + 1);
            bytes[from.min(to)..from.max(to)].to_vec()
        }),
        1 => prop::collection::vec(any::<u8>(), 0..40),
        1 => prop::collection::vec(prop::sample::select(b"{}[]\",:\\\0\n \xff".to_vec()), 0..40),
        1 => (0usize..3000).prop_map(|length| vec![0; length]),
        1 => Just(b"\n".to_vec()),
    ];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_bytes_are_read_and_the_counts_add_up(bytes in damaged(), buffer in 1usize..200) {
        let mut reader = Reader::new(std::io::BufReader::with_capacity(buffer, bytes.as_slice())).unwrap();
        let found = events(&mut reader);
        check_sums(&bytes, &reader, found.len() as u64);
        // The size of the input buffers does not matter.
        let mut whole = Reader::new(bytes.as_slice()).unwrap();
        prop_assert_eq!(&events(&mut whole), &found);
        prop_assert_eq!(whole.counts(), reader.counts());
    }

    #[test]
    fn written_files_read_back_the_same(bytes in damaged()) {
        let bytes = [fixture("manifest_only"), bytes].concat();
        let mut reader = Reader::new(bytes.as_slice()).unwrap();
        let found = events(&mut reader);
        let written = normalised(&bytes);
        let mut again = Reader::new(written.as_slice()).unwrap();
        prop_assert_eq!(again.manifest(), reader.manifest());
        prop_assert_eq!(&events(&mut again), &found);
        prop_assert_eq!(again.counts().clean, again.counts().lines);
    }

    #[test]
    fn appending_to_complete_lines_changes_nothing_before_them(bytes in damaged(), more in damaged()) {
        let ended = [&fixture("manifest_only")[..], &bytes[..], b"\n"].concat();
        let mut before = Reader::new(ended.as_slice()).unwrap();
        let found = events(&mut before);
        let all = [&ended[..], &more[..]].concat();
        let mut after = Reader::marking(all.as_slice(), Some(before.events_bytes())).unwrap();
        let grown = events(&mut after);
        prop_assert_eq!(&grown[..found.len()], &found[..]);
        prop_assert_eq!(after.marked_hash(), Some(before.events_hash()));
    }
}
