//! Searching without an index: every call reads every log. The order is that of the threads, not of relevance.

use std::collections::HashMap;

use selvedge_log::{Line, line};
use selvedge_model::{Cancel, Event, Manifest, ThreadId};

use super::MemoryStore;
use crate::contract::{Logs, Registry};
use crate::error::Result;
use crate::search::contract::{Hit, IndexProgress, NotSearched, Search, SearchHits, SearchRequest, UnembeddedPassage};
use crate::search::document::{PassageKind, passages, text_of_blob};
use crate::search::event_texts::said;
use crate::search::query::{Expr, Filters};
use crate::search::segment::segmented;

/// The vectors of passages, by their place, and the embedder that they are of.
#[derive(Default)]
pub(super) struct Vectors {
    embedder: (String, usize),
    vectors: HashMap<(ThreadId, u64, u64, i64), Vec<f32>>,
}

fn place(hit: &Hit) -> (ThreadId, u64, u64, i64) {
    (hit.thread.clone(), hit.line, hit.offset, hit.digest)
}

/// The words of a text, in order.
fn words(text: &str) -> Vec<String> {
    let lower = segmented(text).to_lowercase();
    lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Whether an expression holds for a text, given its words.
fn holds(expr: &Expr, text: &str, all: &[String]) -> bool {
    match expr {
        Expr::Word(wanted) | Expr::Phrase(wanted) => {
            let wanted_words = words(wanted);
            let is_marked = wanted.chars().any(|c| !c.is_alphanumeric() && !c.is_whitespace());
            match wanted_words.len() {
                0 => text.contains(&wanted.to_lowercase()),
                length => {
                    all.windows(length).any(|window| *window == *wanted_words)
                        && (!is_marked || text.contains(&wanted.to_lowercase()))
                }
            }
        }
        Expr::Prefix(wanted) => words(wanted).iter().all(|wanted| all.iter().any(|word| word.starts_with(wanted))),
        Expr::Not(inner) => !holds(inner, text, all),
        Expr::And(inner) => inner.iter().all(|one| holds(one, text, all)),
        Expr::Or(inner) => inner.iter().any(|one| holds(one, text, all)),
    }
}

fn admits(filters: &Filters, manifest: &Manifest) -> bool {
    fn any<T: PartialEq>(wanted: &[T], unwanted: &[T], value: Option<&T>) -> bool {
        let is = |list: &[T]| value.is_some_and(|value| list.contains(value));
        (wanted.is_empty() || is(wanted)) && !is(unwanted)
    }
    any(&filters.agents, &filters.not_agents, Some(&manifest.agent_id))
        && any(&filters.directives, &filters.not_directives, manifest.directive.as_ref())
        && any(&filters.statuses, &filters.not_statuses, Some(&manifest.status))
}

impl MemoryStore {
    /// Every passage, with its text and the manifest of its thread.
    fn each_passage(&self, each: &mut dyn FnMut(Hit, &str, &Manifest)) -> Result<NotSearched> {
        let mut unsearched = NotSearched::default();
        let threads: Vec<ThreadId> = self.inner().threads.keys().cloned().collect();
        for thread in threads {
            let manifest = self.get(&thread)?.manifest;
            let bytes = self.inner().slot(&thread)?.bytes.clone();
            let mut pending: Vec<Line> = Vec::new();
            for bytes in bytes.split(|byte| *byte == b'\n').filter(|bytes| !bytes.is_empty()) {
                let line = line::decode(bytes)?;
                let Event::Checkpoint(checkpoint) = &line.event else {
                    pending.push(line);
                    continue;
                };
                let version = checkpoint.version;
                for line in pending.drain(..) {
                    let mut texts: Vec<(Option<_>, String)> =
                        said(&line.event).map(|text| (None, text)).into_iter().collect();
                    for blob in line.event.blobs() {
                        match self.blob(&thread, &blob) {
                            Ok(bytes) => match text_of_blob(&bytes) {
                                Some((text, is_whole)) => {
                                    unsearched.blobs_cut += u64::from(!is_whole);
                                    texts.push((Some(blob), text.to_owned()));
                                }
                                None => unsearched.blobs_not_text += 1,
                            },
                            Err(crate::Error::Erased { .. }) => {}
                            Err(_) => unsearched.blobs_unreadable += 1,
                        }
                    }
                    for (blob, text) in &texts {
                        for passage in passages(text) {
                            let hit = Hit {
                                thread: thread.clone(),
                                kind: if blob.is_some() { PassageKind::Blob } else { PassageKind::Message },
                                version,
                                line: line.seq,
                                blob: *blob,
                                offset: passage.offset as u64,
                                bytes: passage.text.len() as u64,
                                digest: passage.digest(),
                                at: line.timestamp,
                                score: 0.0,
                                matches: 1,
                            };
                            each(hit, passage.text, &manifest);
                        }
                    }
                }
            }
        }
        Ok(unsearched)
    }
}

impl Search for MemoryStore {
    fn catch_up(&self, _: &Cancel) -> Result<IndexProgress> {
        Ok(IndexProgress::default())
    }

    fn search(&self, ask: &SearchRequest<'_>) -> Result<SearchHits> {
        let filters = &ask.query.filters;
        let mut hits: Vec<Hit> = Vec::new();
        let mut places: HashMap<ThreadId, usize> = HashMap::new();
        let mut close: Vec<(f32, Hit)> = Vec::new();
        let mut without_vectors = 0;
        let unsearched = self.each_passage(&mut |hit, text, manifest| {
            let is_in_time = filters.since.is_none_or(|since| hit.at >= since)
                && filters.before.is_none_or(|before| hit.at < before);
            if !is_in_time || !admits(filters, manifest) {
                return;
            }
            if let Some((name, wanted)) = ask.vector {
                let known = &self.inner().vectors;
                let is_comparable = known.embedder == (name.to_owned(), wanted.len());
                let vector = known.vectors.get(&place(&hit)).filter(|_| is_comparable);
                without_vectors += u64::from(vector.is_none());
                let score: f32 = vector.map_or(0.0, |vector| vector.iter().zip(wanted).map(|(a, b)| a * b).sum());
                if score > 0.0 {
                    close.push((score, hit.clone()));
                }
            }
            let lower = text.to_lowercase();
            if holds(&ask.query.expr, &lower, &words(text)) {
                match places.get(&hit.thread) {
                    Some(known) => hits[*known].matches += 1,
                    None => {
                        places.insert(hit.thread.clone(), hits.len());
                        hits.push(Hit { score: 1.0, ..hit });
                    }
                }
            }
        })?;
        close.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (score, hit) in close {
            if !places.contains_key(&hit.thread) {
                places.insert(hit.thread.clone(), hits.len());
                hits.push(Hit { score: f64::from(score), ..hit });
            }
        }
        let has_more = hits.len() > ask.limit;
        hits.truncate(ask.limit);
        Ok(SearchHits { hits, has_more, unsearched, without_vectors })
    }

    fn index_again(&self, _: &ThreadId) -> Result<()> {
        Ok(())
    }

    fn pending_vectors(&self, embedder: &str, dimensions: usize, limit: usize) -> Result<Vec<UnembeddedPassage>> {
        let wanted = (embedder.to_owned(), dimensions);
        let mut inner = self.inner();
        if inner.vectors.embedder != wanted {
            inner.vectors = Vectors { embedder: wanted, vectors: HashMap::new() };
        }
        drop(inner);
        let mut pending = Vec::new();
        let mut document = 0;
        self.each_passage(&mut |hit, _, _| {
            document += 1;
            if pending.len() < limit && !self.inner().vectors.vectors.contains_key(&place(&hit)) {
                pending.push(UnembeddedPassage { document, hit });
            }
        })?;
        Ok(pending)
    }

    fn put_vectors(&self, embedder: &str, vectors: &[(UnembeddedPassage, Vec<f32>)]) -> Result<()> {
        let mut inner = self.inner();
        for (pending, vector) in vectors {
            if inner.vectors.embedder == (embedder.to_owned(), vector.len()) {
                inner.vectors.vectors.insert(place(&pending.hit), vector.clone());
            }
        }
        Ok(())
    }

    fn dump(&self) -> Result<String> {
        let mut lines = Vec::new();
        self.each_passage(&mut |hit, text, _| {
            lines.push(format!("{} {} {} {text:?}", hit.thread, hit.line, hit.offset))
        })?;
        Ok(lines.join("\n"))
    }
}
