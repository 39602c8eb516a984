//! Searches entries of knowledge: the query grammar of the thread search, over the metadata and texts of the files.
//!
//! An entry matches if the query holds for all of its fields together. Its score is the share of the weights of the fields that have a word
//! of the query: title and name 3, description and tags 2, category 1.5, text 1. Filters of threads (`agent:`, `status:` …) match no entry.

use std::cmp::Ordering;

use selvedge_items::knowledge::KnowledgeEntry;
use selvedge_items::{ItemError, Library};
use selvedge_store::search::Query;
use selvedge_store::search::query::{Expr, Filters};
use serde::Serialize;

/// The most entries of an answer.
pub const FOUND_MAX: usize = 100;

/// How many characters of the text are shown around a match.
const SNIPPET_CHARS: usize = 160;

/// An entry that matches.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KnowledgeFound {
    /// The entry.
    #[serde(flatten)]
    pub entry: KnowledgeEntry,
    /// Its score, between 0 and 1.
    pub score: f64,
    /// The text around the first match.
    pub snippet: String,
}

/// The entries that match, the best first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KnowledgeAnswer {
    /// The entries.
    pub results: Vec<KnowledgeFound>,
    /// How many more match.
    pub more: usize,
    /// How many entries were searched.
    pub searched: usize,
}

/// A field of an entry, in words.
struct Field {
    weight: f64,
    /// Lower-case, with one space between words and at both ends.
    text: String,
}

impl Field {
    fn new(weight: f64, text: &str) -> Self {
        Self { weight, text: words(text) }
    }

    fn has(&self, leaf: &Leaf) -> bool {
        match leaf {
            Leaf::Whole(words) => self.text.contains(words.as_str()),
            Leaf::Begin(words) => self.text.contains(words.trim_end()),
        }
    }
}

/// What a word, a phrase or the beginning of a word looks for.
enum Leaf {
    Whole(String),
    Begin(String),
}

/// Words in lower case, with one space between them and at both ends.
fn words(text: &str) -> String {
    let mut all = String::with_capacity(text.len() + 2);
    all.push(' ');
    for word in text.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty()) {
        all.extend(word.chars().flat_map(char::to_lowercase));
        all.push(' ');
    }
    all
}

/// Searches the entries of a library; `may_see` says of an id whether it is searched at all.
pub fn search_knowledge(
    library: &Library,
    query: &Query,
    limit: usize,
    may_see: &dyn Fn(&str) -> bool,
) -> Result<KnowledgeAnswer, ItemError> {
    let mut answer = KnowledgeAnswer::default();
    if query.filters != Filters::default() {
        return Ok(answer);
    }
    let mut found = Vec::new();
    for listed in library.knowledge_ids()?.iter().filter(|listed| may_see(&listed.id)) {
        answer.searched += 1;
        // Most entries have none of the words: those are not verified, and their metadata are not read.
        let bytes = library.knowledge_bytes(listed);
        if bytes.is_some_and(|bytes| !may_match(&query.expr, &listed.id, bytes)) {
            continue;
        }
        let entry = library.knowledge_entry(listed);
        let fields = fields(&entry);
        if matches(&query.expr, &fields) {
            let score = score(&query.expr, &fields);
            found.push(KnowledgeFound { snippet: snippet(&entry, &query.expr), entry, score });
        }
    }
    found.sort_by(best_first);
    answer.more = found.len().saturating_sub(limit);
    found.truncate(limit);
    answer.results = found;
    Ok(answer)
}

/// Whether an entry with these bytes may match; only what can't is said not to.
fn may_match(expr: &Expr, id: &str, bytes: Vec<u8>) -> bool {
    // An escape in the metadata may stand for anything.
    if bytes.contains(&b'\\') {
        return true;
    }
    let Ok(mut text) = String::from_utf8(bytes) else { return true };
    if text.is_ascii() {
        text.make_ascii_lowercase();
    } else {
        text = text.chars().flat_map(char::to_lowercase).collect();
    }
    may_hold(expr, id, &text)
}

fn may_hold(expr: &Expr, id: &str, text: &str) -> bool {
    match expr {
        Expr::Not(_) => true,
        Expr::And(all) => all.iter().all(|one| may_hold(one, id, text)),
        Expr::Or(any) => any.iter().any(|one| may_hold(one, id, text)),
        Expr::Word(wanted) | Expr::Phrase(wanted) | Expr::Prefix(wanted) => {
            words(wanted).split_whitespace().all(|word| text.contains(word) || id.contains(word))
        }
    }
}

fn best_first(one: &KnowledgeFound, other: &KnowledgeFound) -> Ordering {
    let by_place = (&one.entry.id, one.entry.layer).cmp(&(&other.entry.id, other.entry.layer));
    other.score.total_cmp(&one.score).then(one.entry.layer.cmp(&other.entry.layer)).then(by_place)
}

fn fields(entry: &KnowledgeEntry) -> Vec<Field> {
    let of = &entry.metadata;
    let (folder, name) = entry.id.rsplit_once('/').unwrap_or(("", &entry.id));
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    vec![
        Field::new(3.0, &text(&of.title)),
        Field::new(3.0, name),
        Field::new(2.0, &text(&of.description)),
        Field::new(2.0, &of.tags.join(" . ")),
        Field::new(1.5, folder),
        Field::new(1.0, &entry.body),
    ]
}

fn leaf(expr: &Expr) -> Option<Leaf> {
    match expr {
        Expr::Word(text) | Expr::Phrase(text) => Some(Leaf::Whole(words(text))),
        Expr::Prefix(text) => Some(Leaf::Begin(words(text))),
        Expr::Not(_) | Expr::And(_) | Expr::Or(_) => None,
    }
}

fn matches(expr: &Expr, fields: &[Field]) -> bool {
    match expr {
        Expr::Not(not) => !matches(not, fields),
        Expr::And(all) => all.iter().all(|one| matches(one, fields)),
        Expr::Or(any) => any.iter().any(|one| matches(one, fields)),
        one => leaf(one).is_some_and(|leaf| fields.iter().any(|field| field.has(&leaf))),
    }
}

/// The words and phrases that are to be there.
fn wanted<'e>(expr: &'e Expr, found: &mut Vec<&'e Expr>) {
    match expr {
        Expr::Not(_) => {}
        Expr::And(all) | Expr::Or(all) => all.iter().for_each(|one| wanted(one, found)),
        one => found.push(one),
    }
}

fn score(expr: &Expr, fields: &[Field]) -> f64 {
    let mut leaves = Vec::new();
    wanted(expr, &mut leaves);
    let leaves: Vec<Leaf> = leaves.into_iter().filter_map(leaf).collect();
    let all: f64 = fields.iter().map(|field| field.weight).sum::<f64>() * leaves.len().max(1) as f64;
    let of = |field: &Field| field.weight * leaves.iter().filter(|leaf| field.has(leaf)).count() as f64;
    // Four decimals, so that equal entries are equal.
    (fields.iter().map(of).sum::<f64>() / all * 1e4).round() / 1e4
}

fn snippet(entry: &KnowledgeEntry, expr: &Expr) -> String {
    let mut leaves = Vec::new();
    wanted(expr, &mut leaves);
    let lower = entry.body.to_lowercase();
    let at = leaves.iter().find_map(|leaf| match leaf {
        Expr::Word(text) | Expr::Phrase(text) | Expr::Prefix(text) => lower.find(&text.to_lowercase()),
        _ => None,
    });
    let from = entry.body.floor_char_boundary(at.unwrap_or(0).saturating_sub(SNIPPET_CHARS / 3));
    let text: String = entry.body[from..].chars().take(SNIPPET_CHARS).collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use selvedge_items::Policy;
    use selvedge_log::Trust;

    use super::*;

    fn library(entries: &[(&str, &str)]) -> (tempfile::TempDir, Library) {
        let folder = tempfile::tempdir().unwrap();
        for (id, text) in entries {
            let file = folder.path().join(format!("project/knowledge/{id}.md"));
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        let library = Library {
            project: Some(folder.path().join("project")),
            user: Some(folder.path().join("user")),
            trust: Trust::of(&[]),
            policy: Policy::default(),
        };
        (folder, library)
    }

    fn found(library: &Library, query: &str) -> Vec<String> {
        let query = Query::parse(query, &|_| None).unwrap();
        let answer = search_knowledge(library, &query, 10, &|id| !id.starts_with("secret/")).unwrap();
        answer.results.into_iter().map(|found| found.entry.id).collect()
    }

    #[test]
    fn what_is_passed_over_is_what_does_not_match() {
        let (_folder, library) = library(&[
            ("a/escaped", "---\ntitle: \"Caf\\u00e9\"\n---\nNothing.\n"),
            ("a/greek", "ΣΊΣΥΦΟΣ met the \u{212a}elvin and an ÉCLAIR.\n"),
            ("b/phrase", "One\n two-three.\n"),
        ]);
        assert_eq!(found(&library, "café"), ["a/escaped"]);
        for query in ["σίσυφοσ", "kelvin", "éclair", "strasse OR kelv*"] {
            assert_eq!(found(&library, query), ["a/greek"], "{query}");
        }
        assert_eq!(found(&library, "\"one two three\""), ["b/phrase"]);
        assert_eq!(found(&library, "phrase b"), ["b/phrase"], "the words of an id count");
        assert_eq!(found(&library, "two NOT met"), ["b/phrase"]);
    }

    #[test]
    fn fields_are_weighted_and_the_grammar_is_that_of_threads() {
        let (_folder, library) = library(&[
            ("api/invoices", "---\ntitle: Invoices\ntags: [money]\n---\nHow to send one.\n"),
            ("notes/day", "We talked about invoices and about the weather.\n"),
            ("notes/other", "```yaml\nname: other\ndescription: Unpaid invoices\n```\nNothing else.\n"),
            ("secret/invoices", "Invoices.\n"),
        ]);
        assert_eq!(found(&library, "invoices"), ["api/invoices", "notes/other", "notes/day"]);
        assert_eq!(found(&library, "invoices NOT weather"), ["api/invoices", "notes/other"]);
        assert_eq!(found(&library, "\"about the weather\" OR money"), ["api/invoices", "notes/day"]);
        assert_eq!(found(&library, "invo* (weather OR unpaid)"), ["notes/other", "notes/day"]);
        assert!(found(&library, "voices").is_empty() && found(&library, "invoices status:running").is_empty());
    }
}
