//! What `web.fetch` refuses, and what it makes of a page.

use std::collections::HashMap;
use std::io::{self, BufRead as _, Write as _};
use std::net::{IpAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use selvedge_model::{Output, ToolError};
use selvedge_tools::{Resolve, WebFetch, WebOptions};
use serde_json::{Value, json};

use crate::support::{text, use_tool};

/// A resolver that answers with the next list of addresses each time.
#[derive(Default)]
struct Fake {
    known: Mutex<HashMap<String, Vec<Vec<IpAddr>>>>,
    asked: AtomicUsize,
}

impl Resolve for Fake {
    fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mut known = self.known.lock().unwrap();
        let answers = known.get_mut(host).ok_or(io::ErrorKind::NotFound)?;
        Ok(if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() })
    }
}

fn fake(names: &[(&str, &[&[&str]])]) -> Arc<Fake> {
    let fake = Fake::default();
    for (name, answers) in names {
        let answers = answers.iter().map(|one| one.iter().map(|address| address.parse().unwrap()).collect());
        fake.known.lock().unwrap().insert((*name).to_owned(), answers.collect());
    }
    Arc::new(fake)
}

fn fetch(url: &str, allowed: &[&str], resolver: Arc<Fake>) -> Result<Output, ToolError> {
    let allowed = allowed.iter().map(|one| (*one).to_owned()).collect();
    use_tool(&WebFetch::new(WebOptions { allowed, resolver }).unwrap(), json!({"url": url}))
}

#[track_caller]
fn refusal(answer: Result<Output, ToolError>) -> String {
    match answer {
        Ok(output) if output.is_error => text(&output).to_owned(),
        Ok(output) => panic!("it was not refused: {output:?}"),
        Err(error) => error.to_string(),
    }
}

/// A server that gives each path its response; returns its port.
fn serve(pages: &'static [(&'static str, &'static str)]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = String::new();
            let mut reader = io::BufReader::new(stream.try_clone().unwrap());
            while reader.read_line(&mut head).is_ok_and(|count| count > 2) {}
            let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
            let page = pages
                .iter()
                .find(|(known, _)| *known == path)
                .map_or("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", |(_, page)| page);
            _ = stream.write_all(page.replace("PORT", &port.to_string()).as_bytes());
        }
    });
    port
}

#[test]
fn addresses_of_this_machine_and_its_networks_are_refused_however_they_are_written() {
    for url in [
        "http://127.0.0.1/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://0/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[fd00:ec2::254]/",
        "http://10.0.0.1/",
        "http://192.168.0.1/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://①②⑦.0.0.1/",
    ] {
        let said = refusal(fetch(url, &[], fake(&[])));
        assert!(said.contains("is refused") || said.contains("not an address"), "{url}: {said}");
    }
}

#[test]
fn names_of_such_addresses_are_refused_and_one_bad_address_is_enough() {
    let resolver = || {
        fake(&[
            ("inside.test", &[&["10.0.0.7"]]),
            ("both.test", &[&["93.184.215.14", "127.0.0.1"]]),
            ("mapped.test", &[&["::ffff:169.254.169.254"]]),
        ])
    };
    for host in ["inside.test", "both.test", "mapped.test"] {
        assert!(refusal(fetch(&format!("http://{host}/"), &[], resolver())).contains("is refused"), "{host}");
    }
    assert!(refusal(fetch("http://nowhere.test/", &[], resolver())).contains("has no address"));
}

#[test]
fn schemes_ports_and_credentials_are_refused() {
    for (url, why) in [
        ("file:///etc/passwd", "`file` addresses"),
        ("ftp://x.test/", "`ftp` addresses"),
        ("gopher://x.test/", "`gopher` addresses"),
        ("http://x.test:22/", "port 22"),
        ("http://user:secret@x.test/", "a user or a password"),
        ("x.test", "not an address"),
    ] {
        let said = refusal(fetch(url, &[], fake(&[("x.test", &[&["93.184.215.14"]])])));
        assert!(said.contains(why), "{url}: {said}");
    }
}

#[test]
fn a_redirect_is_checked_like_the_first_address() {
    let port = serve(&[
        ("/inside", "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:PORT/secret\r\ncontent-length: 0\r\n\r\n"),
        ("/scheme", "HTTP/1.1 302 Found\r\nlocation: file:///etc/passwd\r\ncontent-length: 0\r\n\r\n"),
        ("/loop", "HTTP/1.1 302 Found\r\nlocation: /loop\r\ncontent-length: 0\r\n\r\n"),
        ("/ok", "HTTP/1.1 301 Moved\r\nlocation: /page\r\ncontent-length: 0\r\n\r\n"),
        (
            "/page",
            "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 27\r\n\r\n<h1>Hi</h1><p>&lt;there&gt;",
        ),
        ("/secret", "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 6\r\n\r\ncanary"),
    ]);
    let allowed = format!("site.test:{port}");
    let get = |path: &str| {
        fetch(&format!("http://site.test:{port}{path}"), &[&allowed], fake(&[("site.test", &[&["127.0.0.1"]])]))
    };
    assert!(refusal(get("/inside")).contains("is refused"));
    assert!(refusal(get("/scheme")).contains("`file` addresses"));
    assert!(refusal(get("/loop")).contains("more than 5 times"));
    let page = get("/ok").unwrap();
    let Value::Object(page) = page.content else { panic!("{page:?}") };
    assert_eq!((&page["text"], &page["status"]), (&json!("Hi\n<there>"), &json!(200)));
    assert_eq!(page["url"], format!("http://site.test:{port}/page"));
}

#[test]
fn a_name_is_resolved_once_and_the_checked_address_is_the_one_that_is_used() {
    let port = serve(&[("/", "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 6\r\n\r\ncanary")]);
    // The second answer would lead here; the first is an address for tests that nobody answers at.
    let resolver = fake(&[("rebind.test", &[&["10.255.255.1"], &["127.0.0.1"]])]);
    let said = refusal(fetch(&format!("http://rebind.test:{port}/"), &[], resolver.clone()));
    assert!(said.contains("refused"), "{said}");
    let allowed = format!("once.test:{port}");
    let resolver = fake(&[("once.test", &[&["127.0.0.1"], &["10.255.255.1"]])]);
    let output = fetch(&format!("http://once.test:{port}/"), &[&allowed], resolver.clone()).unwrap();
    assert_eq!((&output.content["text"], resolver.asked.load(Ordering::SeqCst)), (&json!("canary"), 1));
}

#[test]
fn what_is_no_text_is_refused_and_an_error_page_is_an_error() {
    let port = serve(&[("/png", "HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length: 4\r\n\r\n\u{1}PNG")]);
    let allowed = format!("site.test:{port}");
    let get = |path: &str| {
        fetch(&format!("http://site.test:{port}{path}"), &[&allowed], fake(&[("site.test", &[&["127.0.0.1"]])]))
    };
    assert!(refusal(get("/png")).contains("no text"));
    let missing = get("/missing").unwrap();
    assert!(missing.is_error && missing.content["status"] == 404);
}
