//! Full-text search with `tsvector`. The index follows the feed with a cursor of its own and decides nothing: every hit is read back from
//! the verified log.
//!
//! Words are those of the configuration `simple`, of text that is segmented as for every backend; marks such as `-` or `/` in a word are
//! compared with the text itself.

use std::collections::{BTreeMap, HashMap};

use selvedge_log::Line;
use selvedge_model::{Cancel, Status, ThreadId, Timestamp};
use selvedge_store::search::contract::{
    Hit, IndexProgress, NotSearched, Search, SearchHits, SearchRequest, UnembeddedPassage,
};
use selvedge_store::search::document::{PassageKind, passages, text_of_blob};
use selvedge_store::search::event_texts::said;
use selvedge_store::search::query::{Expr, Filters};
use selvedge_store::search::rank_fusion::fused;
use selvedge_store::search::segment::{has_words, segmented};
use selvedge_store::{Error, Feed as _, FeedEntry, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_postgres::Row as SqlRow;

use crate::open::PostgresStore;
use crate::rows::{self, Row};

/// How many commits are indexed at once.
const COMMITS_AT_ONCE: usize = 200;
/// The most passages that are ranked.
const RANKED_MAX: i64 = 2000;
/// The name of the index among the effects, and of its lock.
const NAME: &str = "search";

/// How far the index is.
#[derive(Default, Serialize, Deserialize)]
struct Cursor {
    position: u64,
}

/// What was left out of one thread.
#[derive(Default, Serialize, Deserialize)]
struct Counts {
    not_text: u64,
    cut: u64,
    unreadable: u64,
}

/// A condition of SQL and its values, which are all texts.
#[derive(Default)]
struct Condition {
    values: Vec<String>,
}

impl Condition {
    fn value(&mut self, text: String) -> String {
        // The server takes no text with this character; texts are indexed without it too.
        self.values.push(text.replace('\0', " "));
        format!("${}", self.values.len())
    }

    fn holds(&mut self, expr: &Expr) -> String {
        match expr {
            Expr::Word(text) | Expr::Phrase(text) => {
                let lower = text.to_lowercase();
                let words = segmented(&lower);
                let is_marked = text.chars().any(|c| !c.is_alphanumeric() && !c.is_whitespace());
                let mut parts = Vec::new();
                if has_words(&words) {
                    let value = self.value(plain(&words));
                    parts.push(format!("p.words @@ phraseto_tsquery('simple', {value})"));
                }
                if is_marked || parts.is_empty() {
                    let value = self.value(lower);
                    parts.push(format!("position({value} in p.lower) > 0"));
                }
                format!("({})", parts.join(" AND "))
            }
            Expr::Prefix(text) => {
                let words = plain(&segmented(&text.to_lowercase()));
                let words: Vec<_> = words.split_whitespace().map(|word| format!("'{word}':*")).collect();
                if words.is_empty() {
                    return "false".to_owned();
                }
                let value = self.value(words.join(" & "));
                format!("p.words @@ to_tsquery('simple', {value})")
            }
            Expr::Not(inner) => format!("NOT {}", self.holds(inner)),
            Expr::And(inner) => self.joined(inner, " AND "),
            Expr::Or(inner) => self.joined(inner, " OR "),
        }
    }

    fn joined(&mut self, inner: &[Expr], with: &str) -> String {
        let parts: Vec<_> = inner.iter().map(|one| self.holds(one)).collect();
        format!("({})", parts.join(with))
    }

    /// What the filters admit, of `threads AS t` and `passages AS p`.
    fn admits(&mut self, filters: &Filters) -> String {
        let names = |list: &[String]| serde_json::to_string(list).unwrap_or_default();
        let agents = |list: &[selvedge_model::AgentId]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        let directives =
            |list: &[selvedge_model::DirectiveId]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        let statuses = |list: &[Status]| list.iter().map(|status| status.as_str().to_owned()).collect::<Vec<_>>();
        let lists = [
            ("t.agent", agents(&filters.agents), agents(&filters.not_agents)),
            ("COALESCE(t.directive, '')", directives(&filters.directives), directives(&filters.not_directives)),
            ("t.status", statuses(&filters.statuses), statuses(&filters.not_statuses)),
        ];
        let mut parts = vec!["true".to_owned()];
        for (column, wanted, unwanted) in lists {
            for (list, word) in [(wanted, "IN"), (unwanted, "NOT IN")] {
                if !list.is_empty() {
                    let value = self.value(names(&list));
                    parts.push(format!("{column} {word} (SELECT jsonb_array_elements_text({value}::text::jsonb))"));
                }
            }
        }
        for (time, sign) in [(filters.since, ">="), (filters.before, "<")] {
            if let Some(time) = time {
                parts.push(format!("p.written_at {sign} {}", time.as_micros()));
            }
        }
        parts.join(" AND ")
    }
}

/// Only letters and digits: nothing that the parser of queries gives a meaning.
fn plain(words: &str) -> String {
    words.chars().map(|c| if c.is_alphanumeric() { c } else { ' ' }).collect()
}

const COLUMNS: &str = "p.number, p.thread, p.version, p.line, p.blob, p.first_byte, p.bytes, p.digest, p.written_at";

fn hit(row: &SqlRow) -> Result<(i64, Hit)> {
    let blob: Option<&[u8]> = row.get(4);
    let blob = blob.map(rows::digest).transpose()?;
    let hit = Hit {
        thread: rows::id(row.get(1))?,
        kind: if blob.is_some() { PassageKind::Blob } else { PassageKind::Message },
        version: rows::unsigned(row.get(2)),
        line: rows::unsigned(row.get(3)),
        blob,
        offset: rows::unsigned(row.get(5)),
        bytes: rows::unsigned(row.get(6)),
        digest: row.get(7),
        at: Timestamp::from_micros(row.get(8)),
        score: 0.0,
        matches: 1,
    };
    Ok((row.get(0), hit))
}

impl Search for PostgresStore {
    fn catch_up(&self, cancel: &Cancel) -> Result<IndexProgress> {
        let core = &self.core;
        let mut progress = IndexProgress::default();
        let mut cursor: Cursor = core.state_of(NAME)?;
        let newest = self.position()?;
        if core.signing.is_none() || newest <= cursor.position {
            return Ok(progress);
        }
        let Some(_lock) = core.try_lock(NAME)? else { return Ok(progress) };
        cursor = core.state_of(NAME)?;
        loop {
            let entries = self.after(cursor.position, COMMITS_AT_ONCE)?;
            let Some(last) = entries.last() else { return Ok(progress) };
            if cancel.said().is_some() {
                progress.behind = entries.len() as u64;
                return Ok(progress);
            }
            for entry in &entries {
                self.index(entry)?;
                progress.commits += 1;
            }
            cursor.position = last.position;
            core.set_state_of(NAME, &cursor)?;
        }
    }

    fn search(&self, ask: &SearchRequest<'_>) -> Result<SearchHits> {
        let mut condition = Condition::default();
        let holds = condition.holds(&ask.query.expr);
        let admits = condition.admits(&ask.query.filters);
        let wanted: Vec<_> =
            ask.query.expr.wanted().iter().map(|text| plain(&segmented(&text.to_lowercase()))).collect();
        let ranked = condition.value(wanted.join(" "));
        let sql = format!(
            "SELECT {COLUMNS}, ts_rank(p.words, replace(plainto_tsquery('simple', {ranked})::text, '&', '|')::tsquery) AS rank \
             FROM passages AS p JOIN threads AS t ON t.root = p.root AND t.thread = p.thread \
             WHERE {holds} AND {admits} ORDER BY rank DESC, p.number LIMIT {RANKED_MAX}"
        );
        let found = self.query_texts(&sql, &condition.values)?;
        let mut hits: HashMap<ThreadId, Hit> = HashMap::new();
        let mut by_words = Vec::new();
        for row in &found {
            let (_, mut hit) = hit(row)?;
            hit.score = f64::from(row.get::<_, f32>(9));
            match hits.get_mut(&hit.thread) {
                Some(known) => known.matches += 1,
                None => {
                    by_words.push(hit.thread.clone());
                    hits.insert(hit.thread.clone(), hit);
                }
            }
        }
        let mut by_vector = Vec::new();
        if let Some((embedder, vector)) = ask.vector {
            for hit in self.nearest(embedder, vector, &ask.query.filters)? {
                by_vector.push(hit.thread.clone());
                hits.entry(hit.thread.clone()).or_insert(hit);
            }
        }
        let unsearched = self.left_out(&ask.query.filters)?;
        let places: Vec<ThreadId> = hits.keys().cloned().collect();
        let place = |thread: &ThreadId| places.iter().position(|known| known == thread).unwrap_or_default();
        let lists = [by_words.iter().map(place).collect::<Vec<_>>(), by_vector.iter().map(place).collect()];
        let order = fused(&[&lists[0], &lists[1]]);
        let has_more = order.len() > ask.limit;
        let best = order.into_iter().take(ask.limit);
        let hits = best.filter_map(|(at, score)| Some(Hit { score, ..hits.get(&places[at])?.clone() })).collect();
        let without_vectors = match ask.vector {
            Some((embedder, _)) => self.count_without(embedder, &ask.query.filters)?,
            None => 0,
        };
        Ok(SearchHits { hits, has_more, unsearched, without_vectors })
    }

    fn index_again(&self, thread: &ThreadId) -> Result<()> {
        let core = &self.core;
        for sql in ["DELETE FROM passages WHERE thread = $1", "DELETE FROM unsearched WHERE thread = $1"] {
            core.read(|connection| Ok(connection.execute(sql, &[&thread.as_str()]).map(drop)?))?;
        }
        let sql = "SELECT position, version, first_line, lines FROM feed WHERE thread = $1 ORDER BY position";
        let found = core.read(|connection| Ok(connection.query(sql, &[&thread.as_str()])?))?;
        for row in found {
            let first_line = rows::unsigned(row.get(2));
            let lines = first_line..first_line + rows::unsigned(row.get(3));
            self.index(&FeedEntry::new(rows::unsigned(row.get(0)), thread.clone(), rows::unsigned(row.get(1)), lines))?;
        }
        Ok(())
    }

    fn pending_vectors(&self, embedder: &str, dimensions: usize, limit: usize) -> Result<Vec<UnembeddedPassage>> {
        let length = i32::try_from(dimensions.saturating_mul(4)).unwrap_or(i32::MAX);
        let sql = "UPDATE passages SET embedder = NULL, vector = NULL WHERE embedder IS NOT NULL \
                   AND (embedder <> $1 OR length(vector) <> $2)";
        self.core.read(|connection| Ok(connection.execute(sql, &[&embedder, &length]).map(drop)?))?;
        let sql = format!("SELECT {COLUMNS} FROM passages AS p WHERE p.embedder IS NULL ORDER BY p.number LIMIT $1");
        let limit = rows::signed(limit as u64);
        let found = self.core.read(|connection| Ok(connection.query(&sql, &[&limit])?))?;
        found.iter().map(|row| hit(row).map(|(document, hit)| UnembeddedPassage { document, hit })).collect()
    }

    fn put_vectors(&self, embedder: &str, vectors: &[(UnembeddedPassage, Vec<f32>)]) -> Result<()> {
        let sql = "UPDATE passages SET embedder = $1, vector = $2 WHERE number = $3 AND thread = $4 AND digest = $5";
        for (passage, vector) in vectors {
            let bytes: Vec<u8> = vector.iter().flat_map(|one| one.to_le_bytes()).collect();
            let thread = passage.hit.thread.as_str();
            self.core.read(|connection| {
                let values: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
                    [&embedder, &bytes, &passage.document, &thread, &passage.hit.digest];
                Ok(connection.execute(sql, &values).map(drop)?)
            })?;
        }
        Ok(())
    }

    fn dump(&self) -> Result<String> {
        let sql = "SELECT thread, line, first_byte, lower FROM passages ORDER BY thread, line, first_byte, digest";
        let found = self.core.read(|connection| Ok(connection.query(sql, &[])?))?;
        let line = |row: &SqlRow| {
            let (thread, line, at, lower): (String, i64, i64, String) =
                (row.get(0), row.get(1), row.get(2), row.get(3));
            format!("{thread} {line} {at} {lower:?}")
        };
        Ok(found.iter().map(line).collect::<Vec<_>>().join("\n"))
    }
}

impl PostgresStore {
    /// Indexes one commit; what was indexed of it before is replaced.
    fn index(&self, entry: &FeedEntry) -> Result<()> {
        let core = &self.core;
        let Some(row) = core.find(&entry.thread)? else { return Ok(()) };
        let limit = usize::try_from(entry.lines).unwrap_or(usize::MAX);
        let lines = match core.lines(&entry.thread, entry.first_line, limit) {
            Ok(lines) => lines,
            Err(Error::NoThread(_) | Error::Deleted(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut counts = Counts::default();
        let mut found = Vec::new();
        for line in &lines {
            self.texts_of(&row, line, &mut counts, &mut found)?;
        }
        let sql = "WITH gone AS (DELETE FROM passages WHERE root = $1 AND thread = $2 AND version = $3) \
                   INSERT INTO passages (root, thread, version, line, blob, first_byte, bytes, digest, written_at, words, lower) \
                   SELECT $1, $2, $3, (value->>0)::bigint, decode(value->>1, 'hex'), (value->>2)::bigint, (value->>3)::bigint, \
                   (value->>4)::bigint, (value->>5)::bigint, to_tsvector('simple', value->>6), value->>7 \
                   FROM jsonb_array_elements($4::text::jsonb) AS e (value)";
        let version = rows::signed(entry.version);
        let document = serde_json::Value::Array(found).to_string();
        let values = (row.root.as_str(), entry.thread.as_str());
        core.read(|connection| Ok(connection.execute(sql, &[&values.0, &values.1, &version, &document]).map(drop)?))?;
        self.count(&row, &counts)
    }

    fn texts_of(&self, row: &Row, line: &Line, counts: &mut Counts, found: &mut Vec<serde_json::Value>) -> Result<()> {
        let mut texts: Vec<_> = said(&line.event).map(|text| (None, text)).into_iter().collect();
        for blob in line.event.blobs() {
            match self.core.blob(row.thread(), &blob) {
                Ok(bytes) => match text_of_blob(&bytes) {
                    Some((text, is_whole)) => {
                        counts.cut += u64::from(!is_whole);
                        texts.push((Some(blob), text.to_owned()));
                    }
                    None => counts.not_text += 1,
                },
                Err(Error::Erased { .. }) => {}
                Err(Error::Database { why, retryable: true }) => return Err(Error::Database { why, retryable: true }),
                Err(_) => counts.unreadable += 1,
            }
        }
        for (blob, text) in &texts {
            for passage in passages(text) {
                // The server takes no text with this character.
                let lower = passage.text.to_lowercase().replace('\0', " ");
                let blob = blob.map(|blob| selvedge_model::digest::hex(&blob.0));
                found.push(json!([
                    line.seq,
                    blob,
                    passage.offset,
                    passage.text.len(),
                    passage.digest(),
                    line.timestamp.as_micros(),
                    plain(&segmented(&lower)),
                    lower,
                ]));
            }
        }
        Ok(())
    }

    fn count(&self, row: &Row, counts: &Counts) -> Result<()> {
        if counts.not_text + counts.cut + counts.unreadable == 0 {
            return Ok(());
        }
        let sql = "SELECT counts FROM unsearched WHERE root = $1 AND thread = $2";
        let values = (row.root.as_str(), row.thread().as_str());
        let known: Option<String> =
            self.core.read(|connection| Ok(connection.first(sql, &[&values.0, &values.1])?.map(|row| row.get(0))))?;
        let known: Counts = known.map(|text| rows::json(&text)).transpose()?.unwrap_or_default();
        let text = rows::to_json(&Counts {
            not_text: known.not_text + counts.not_text,
            cut: known.cut + counts.cut,
            unreadable: known.unreadable + counts.unreadable,
        })?;
        let sql = "INSERT INTO unsearched (root, thread, counts) VALUES ($1, $2, $3) \
                   ON CONFLICT (root, thread) DO UPDATE SET counts = excluded.counts";
        self.core.read(|connection| Ok(connection.execute(sql, &[&values.0, &values.1, &text]).map(drop)?))
    }

    /// What the index leaves out of the threads that the filters admit.
    fn left_out(&self, filters: &Filters) -> Result<NotSearched> {
        let mut condition = Condition::default();
        let admits = condition.admits(&Filters { since: None, before: None, ..filters.clone() });
        let sql = format!(
            "SELECT u.counts FROM unsearched AS u JOIN threads AS t ON t.root = u.root AND t.thread = u.thread WHERE {admits}"
        );
        let mut all = NotSearched::default();
        for row in self.query_texts(&sql, &condition.values)? {
            let counts: Counts = rows::json(row.get(0))?;
            all.blobs_not_text += counts.not_text;
            all.blobs_cut += counts.cut;
            all.blobs_unreadable += counts.unreadable;
        }
        Ok(all)
    }

    /// The nearest passage of each thread, the nearest first.
    fn nearest(&self, embedder: &str, wanted: &[f32], filters: &Filters) -> Result<Vec<Hit>> {
        let mut condition = Condition::default();
        let named = condition.value(embedder.to_owned());
        let admits = condition.admits(filters);
        let sql = format!(
            "SELECT {COLUMNS}, p.vector FROM passages AS p JOIN threads AS t ON t.root = p.root AND t.thread = p.thread \
             WHERE p.embedder = {named} AND {admits}"
        );
        let mut best: BTreeMap<ThreadId, Hit> = BTreeMap::new();
        for row in self.query_texts(&sql, &condition.values)? {
            let (_, mut hit) = hit(&row)?;
            let bytes: &[u8] = row.get(9);
            let (floats, _) = bytes.as_chunks::<4>();
            if floats.len() != wanted.len() {
                continue;
            }
            let score: f32 = floats.iter().zip(wanted).map(|(one, wanted)| f32::from_le_bytes(*one) * wanted).sum();
            hit.score = f64::from(score);
            if score > 0.0 && best.get(&hit.thread).is_none_or(|known| known.score < hit.score) {
                best.insert(hit.thread.clone(), hit);
            }
        }
        let mut hits: Vec<_> = best.into_values().collect();
        hits.sort_by(|a, b| b.score.total_cmp(&a.score));
        Ok(hits)
    }

    /// How many passages that the filters admit have no vector of an embedder.
    fn count_without(&self, embedder: &str, filters: &Filters) -> Result<u64> {
        let mut condition = Condition::default();
        let named = condition.value(embedder.to_owned());
        let admits = condition.admits(filters);
        let sql = format!(
            "SELECT count(*) FROM passages AS p JOIN threads AS t ON t.root = p.root AND t.thread = p.thread \
             WHERE p.embedder IS DISTINCT FROM {named} AND {admits}"
        );
        Ok(self.query_texts(&sql, &condition.values)?.first().map_or(0, |row| rows::unsigned(row.get(0))))
    }

    fn query_texts(&self, sql: &str, texts: &[String]) -> Result<Vec<SqlRow>> {
        let values: Vec<&(dyn tokio_postgres::types::ToSql + Sync)> =
            texts.iter().map(|text| text as &(dyn tokio_postgres::types::ToSql + Sync)).collect();
        self.core.read(|connection| Ok(connection.query(sql, &values)?))
    }
}
