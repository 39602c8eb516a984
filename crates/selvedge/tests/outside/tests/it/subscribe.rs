//! Subscribing to this process, and following the commits of any process.

use std::time::Duration;

use selvedge::{Draft, Event, Input, RunEvent, Selvedge, Watched, json};

use crate::support::{folder, scripted};

#[tokio::test]
async fn a_subscriber_sees_drafts_before_commits_and_then_the_end() {
    let folder = folder();
    let selvedge = scripted(&folder, &json!([{"say": ["Slow", " water"]}])).open().unwrap();
    let thread = selvedge.create("A poem.").await.unwrap();
    let mut subscription = selvedge.subscribe(Watched::Thread(thread.clone()));
    let run = selvedge.resume(&thread, Input::nothing());
    let mut drafted = String::new();
    let mut committed = 0;
    loop {
        match subscription.next().await.unwrap() {
            RunEvent::Draft { draft: Draft::Text { text }, .. } => drafted.push_str(&text),
            RunEvent::Committed { .. } => committed += 1,
            RunEvent::Ended { .. } => break,
            _ => {}
        }
    }
    assert_eq!(drafted, "Slow water");
    assert!(committed >= 3, "{committed}");
    assert!(run.await.unwrap().is_completed());
}

#[tokio::test]
async fn a_follower_that_only_reads_sees_every_line_once() {
    let folder = folder();
    let writer = scripted(&folder, &json!([{"say": "One."}, {"say": "Two."}])).open().unwrap();
    let thread = writer.run("Count.").await.unwrap().thread_id;
    let reader = Selvedge::builder().project(folder.path()).read_only().open().unwrap();
    let mut follow = reader.follow(&thread, 0);
    let sent = writer.send(&thread, "More.");
    let mut said = Vec::new();
    let mut line = 0;
    while said.len() < 4 {
        let next = tokio::time::timeout(Duration::from_secs(20), follow.next()).await.unwrap().unwrap();
        assert_eq!(next.seq, line);
        line += 1;
        if let Event::Message(message) = next.event {
            said.push(message.plain_text());
        }
    }
    assert_eq!(said, ["Count.", "One.", "More.", "Two."]);
    sent.await.unwrap();
    let first = tokio::task::spawn_blocking(move || reader.follow(&thread, 0).recv(Duration::from_secs(5)));
    assert_eq!(first.await.unwrap().unwrap().unwrap().seq, 0);
}
