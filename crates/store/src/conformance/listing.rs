//! Listing threads: the newest first, page by page, and filtered.

use selvedge_model::event::ManifestChanged;
use selvedge_model::{Event, NewThread, RunMeta, Status, ThreadId};

use super::Harness;
use super::support::*;
use crate::contract::{Acquire, Commit, Cursor, Filter, Leases, Registry};

fn names(store: &impl Registry, filter: &Filter) -> Vec<String> {
    let page = store.list(filter, None, 1_000).unwrap();
    assert_eq!(page.next, None, "everything fits on one page");
    page.items.into_iter().map(|summary| summary.manifest.thread_id.to_string()).collect()
}

fn page(store: &impl Registry, filter: &Filter, after: Option<Cursor>, limit: usize) -> (Vec<String>, Option<Cursor>) {
    let page = store.list(filter, after, limit).unwrap();
    (page.items.into_iter().map(|summary| summary.manifest.thread_id.to_string()).collect(), page.next)
}

/// All threads are listed, the newest first; an append does not move one.
pub fn the_newest_comes_first<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    assert_eq!(names(&store, &Filter::default()), [""; 0], "an empty store lists nothing");
    for name in ["m", "z", "a", "k"] {
        create(if name < "n" { &store } else { &other }, name);
    }
    append(&store, &id("m"), says("an append does not move it"));
    assert_eq!(names(&other, &Filter::default()), ["k", "a", "z", "m"]);
    let newest = &store.list(&Filter::default(), None, 1).unwrap().items[0];
    assert_eq!(*newest, store.get(&id("k")).unwrap(), "a list shows what `get` shows");
}

/// A thread has the live holder of its lease, and is stalled once a run has none.
pub fn a_thread_names_its_live_holder<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let thread = create(&store, "held");
    assert_eq!(store.get(&thread).unwrap().holder, None);
    let lease = other.acquire(&thread, Acquire::default()).unwrap();
    other.commit(batch([part(&thread, starts("r1")).under(lease.epoch)])).unwrap();
    let everywhere = || {
        let listed = store.list(&Filter::default(), None, 10).unwrap().items;
        let found = [vec![store.get(&thread).unwrap()], listed, store.chain(&thread).unwrap()].concat();
        assert_eq!(found.len(), 3);
        found
    };
    for found in everywhere() {
        assert_eq!((found.holder.as_ref(), found.is_stalled()), (Some(other.owner()), false));
    }
    // As a crash would leave it.
    drop(other);
    for found in everywhere() {
        assert_eq!((&found.holder, found.is_stalled()), (&None, true));
    }
    let outside = create(&store, "outside");
    append(&store, &outside, records("r1", RunMeta::started(id("scribe"), "user")));
    let found = store.get(&outside).unwrap();
    assert_eq!(
        (found.manifest.status, found.is_stalled()),
        (Status::Running, false),
        "an outside writer's run is not stalled"
    );
}

/// Pages follow each other without repeating or skipping, and the last one is marked as such.
pub fn pages_follow_each_other<H: Harness>(harness: &H) {
    let store = harness.open();
    let mut expected: Vec<_> = (0..9).map(|number| create(&store, &format!("t{number}")).to_string()).collect();
    expected.reverse();
    for limit in [1, 2, 3, 4, 9, 10] {
        let mut found = Vec::new();
        let mut after = None;
        loop {
            let (items, next) = page(&store, &Filter::default(), after, limit);
            assert!(!items.is_empty() && items.len() <= limit, "a page of {limit}: {items:?}");
            found.extend(items);
            assert!(found.len() <= expected.len(), "pages of {limit} repeat themselves: {found:?}");
            let Some(next) = next else { break };
            after = Some(next);
        }
        assert_eq!(found, expected, "pages of {limit}");
    }
}

/// Threads created between two pages neither push old ones onto the next page nor off it.
pub fn a_cursor_stays_where_it_is<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    for number in 0..6 {
        create(&store, &format!("old{number}"));
    }
    let (first, next) = page(&store, &Filter::default(), None, 2);
    assert_eq!(first, ["old5", "old4"]);
    for number in 0..3 {
        create(&other, &format!("new{number}"));
    }
    let (second, next) = page(&other, &Filter::default(), next, 2);
    assert_eq!(second, ["old3", "old2"], "new threads are before the cursor");
    // The thread at the cursor may be deleted, and the following ones stay.
    other.delete(&id("old2")).unwrap();
    other.delete(&id("old1")).unwrap();
    let (third, last) = page(&store, &Filter::default(), next, 2);
    assert_eq!((third, last), (vec!["old0".to_owned()], None));
    assert_eq!(page(&store, &Filter::default(), None, 1).0, ["new2"]);
}

/// A filter selects by agent, directive, status, parent, text, or several of them.
pub fn filters_select_threads<H: Harness>(harness: &H) {
    let store = harness.open();
    let new = |agent: &str, directive: &str, title: Option<&str>, parent: Option<&ThreadId>| NewThread {
        directive: Some(id(directive)),
        title: title.map(str::to_owned),
        parent_id: parent.cloned(),
        ..NewThread::of(id(agent))
    };
    let root = create_as(&store, "root", new("scribe", "write", Some("Letters home"), None));
    create_as(&store, "first", new("scribe", "write", None, Some(&root)));
    create_as(&store, "second", new("kiwi", "write", Some("Letters abroad"), Some(&root)));
    create_as(&store, "third", new("kiwi", "agency/write", None, None));
    append(&store, &id("second"), starts("run-1"));
    append(&store, &id("third"), finishes("run-1", "natural"));
    let all = Filter::default();
    let expect = |filter: Filter, expected: &[&str]| assert_eq!(names(&store, &filter), expected, "{filter:?}");
    expect(Filter { agent_id: Some(id("scribe")), ..all.clone() }, &["first", "root"]);
    expect(Filter { agent_id: Some(id("missing")), ..all.clone() }, &[]);
    expect(Filter { directive: Some(id("write")), ..all.clone() }, &["second", "first", "root"]);
    expect(Filter { directive: Some(id("agency/write")), ..all.clone() }, &["third"]);
    expect(Filter { status: Some(Status::Created), ..all.clone() }, &["first", "root"]);
    expect(Filter { status: Some(Status::Running), ..all.clone() }, &["second"]);
    expect(Filter { status: Some(Status::Completed), ..all.clone() }, &["third"]);
    expect(Filter { parent_id: Some(root.clone()), ..all.clone() }, &["second", "first"]);
    expect(Filter { text: Some("Letters".to_owned()), ..all.clone() }, &["second", "root"]);
    expect(Filter { text: Some("ir".to_owned()), ..all.clone() }, &["third", "first"]);
    let both = Filter { agent_id: Some(id("kiwi")), parent_id: Some(root), ..all.clone() };
    expect(both.clone(), &["second"]);
    expect(Filter { status: Some(Status::Created), ..both }, &[]);
}

/// A text is searched literally: no character is a wildcard.
pub fn a_text_is_searched_literally<H: Harness>(harness: &H) {
    let store = harness.open();
    for (name, title) in
        [("a-b", "100% wool"), ("a_b", "100 percent"), ("c", "it's [a] *star*"), ("d", "back\\slash"), ("e", "Łódź")]
    {
        create_as(&store, name, NewThread { title: Some(title.to_owned()), ..new_thread() });
    }
    for (text, expected) in [
        ("100%", &["a-b"][..]),
        ("100", &["a_b", "a-b"]),
        ("a_b", &["a_b"]),
        ("%", &["a-b"]),
        ("_", &["a_b"]),
        ("it's", &["c"]),
        ("[a]", &["c"]),
        ("*", &["c"]),
        ("\\", &["d"]),
        ("Łódź", &["e"]),
        ("\"", &[]),
        ("?", &[]),
        ("", &["e", "d", "c", "a_b", "a-b"]),
    ] {
        let filter = Filter { text: Some(text.to_owned()), ..Filter::default() };
        assert_eq!(names(&store, &filter), expected, "`{text}`");
    }
}

/// A filtered list has pages too, and uses the current manifest.
pub fn a_filtered_list_pages_too<H: Harness>(harness: &H) {
    let store = harness.open();
    for number in 0..10 {
        let agent = if number % 2 == 0 { "even" } else { "odd" };
        create_as(&store, &format!("t{number}"), NewThread::of(id(agent)));
    }
    let even = Filter { agent_id: Some(id("even")), ..Filter::default() };
    let (first, next) = page(&store, &even, None, 2);
    create_as(&store, "t10", NewThread::of(id("even")));
    let (second, next) = page(&store, &even, next, 2);
    let (third, last) = page(&store, &even, next, 2);
    assert_eq!([first, second, third].concat(), ["t8", "t6", "t4", "t2", "t0"]);
    assert_eq!(last, None);

    let renamed = ManifestChanged { title: Some("a new name".to_owned()), ..ManifestChanged::default() };
    append(&store, &id("t3"), with_event(Event::ManifestChanged(renamed)));
    let by_title = Filter { text: Some("new name".to_owned()), ..Filter::default() };
    assert_eq!(names(&store, &by_title), ["t3"]);
}

/// A thread is found by its id or its title whichever agent owns it.
pub fn threads_are_found_across_agents<H: Harness>(harness: &H) {
    let store = harness.open();
    for agent in ["scribe", "kiwi", "agency/scout"] {
        let name = format!("{}-{}", agent.replace('/', "-"), "0123456789ab");
        create_as(&store, &name, NewThread { title: Some(format!("Work of {agent}")), ..NewThread::of(id(agent)) });
    }
    let filter = Filter { text: Some("Work of".to_owned()), ..Filter::default() };
    assert_eq!(names(&store, &filter).len(), 3);
    assert_eq!(store.get(&id("kiwi-0123456789ab")).unwrap().manifest.agent_id, id("kiwi"));
    assert_eq!(store.resolve("agency").unwrap(), id("agency-scout-0123456789ab"));
    assert_eq!(names(&store, &Filter { agent_id: Some(id("agency/scout")), ..filter }), ["agency-scout-0123456789ab"]);
}
