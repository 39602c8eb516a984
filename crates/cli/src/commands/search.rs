//! `selvedge search`: searches all threads and their blobs.

use std::sync::Arc;

use selvedge::Engine;
use selvedge::effects::{EffectRunner, embed_query};
use selvedge::project::Project;
use selvedge_engine::thread_search::{ThreadFound, ThreadQuery, ThreadsFound, search_threads};
use selvedge_log::Trust;
use selvedge_model::{AgentId, Cancel, Clock as _, DirectiveId, Embedder, Status, Timestamp};
use selvedge_store::Backend;
use selvedge_store::effects::Effect;
use selvedge_store::search::{NotSearched, Query, since};
use selvedge_store_local::Access;
use selvedge_store_local::system::SystemClock;

use crate::context::{Context, User};
use crate::error::{Exit, Failure, Result};
use crate::output::{BOLD, DIM, WARN, line_width, paint};
use crate::running;
use crate::text::{clean, count, local_midnight, local_minute, one_line};

/// How many characters of a passage are shown.
const PASSAGE_CHARS: usize = 300;

/// Search all threads
///
/// Searches what users, models and tools wrote, in every thread, and the blobs with what was too large for a line. The best passage of each
/// thread is shown with its thread and line, the messages around it, and the command that shows it whole.
///
/// A query is words that must all be in one passage; `"was not paid"` is a phrase, `invo*` the beginning of a word. `OR`, `NOT` and parentheses
/// combine them; `agent:scribe`, `directive:report`, `status:suspended` and `since:7d` restrict the search. Anything else is literal text,
/// such as `a NEAR b`, `foo:bar` or a lone quote. Case and accents are ignored.
///
/// With --semantic the passages whose vectors are close to that of the query are ranked with those that have its words. The vectors are made by
/// the embedder that the configuration names (`embeddings.model`); if it does not answer, words alone are searched for.
///
/// The search index is brought up to date first. It decides nothing: every passage is read back from the verified log. A passage whose log is
/// damaged, or not signed by a trusted key, is marked. Without a signing key the index can't be written, and the output says what
/// it lacks.
///
/// JSON: {"success", "results":[{"thread_id", "agent_id", "directive", "title", "kind", "version", "line_no", "blob", "offset", "at", "passage",
/// "before", "after", "matches", "unverified":{"code", "why"}, "command"}], "has_more", "ignored", "commits_not_searched", "words_alone",
/// "passages_without_vectors", "not_searched"}; "kind" is message or blob, "ignored" are parts of the query that can't be searched for,
/// "words_alone" is why --semantic was without effect, "passages_without_vectors" counts those that it could not compare, and "not_searched"
/// counts content that is not searched: {"blobs_not_text", "blobs_cut", "blobs_unreadable", "threads_unreadable"}.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to search for
    #[arg(required = true, value_name = "WORDS")]
    query: Vec<String>,
    /// Also find passages of similar meaning, with the configured embedder
    #[arg(long)]
    semantic: bool,
    /// Only threads of this agent; can be repeated
    #[arg(long, value_name = "AGENT")]
    agent: Vec<AgentId>,
    /// Only threads of this directive; can be repeated
    #[arg(long, value_name = "DIRECTIVE")]
    directive: Vec<DirectiveId>,
    /// Only threads in this status; can be repeated
    #[arg(long, value_name = "STATUS")]
    status: Vec<Status>,
    /// Only passages since then: 30m, 12h, 7d, 2w, a day such as 2026-11-18, or a timestamp
    #[arg(long, value_name = "WHEN", value_parser = parse_since)]
    since: Option<Timestamp>,
    /// The maximum number of threads
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
}

/// The time of a `--since` option.
pub(crate) fn parse_since(text: &str) -> Result<Timestamp, String> {
    read_since(text).ok_or_else(|| "use 30m, 12h, 7d, 2w, a day such as 2026-11-18, or 2026-11-18T09:30:00Z".to_owned())
}

fn read_since(text: &str) -> Option<Timestamp> {
    since(text, SystemClock.now(), &local_midnight)
}

pub(crate) fn run(args: Args, context: &Context<'_>) -> Result<()> {
    let limit = args.limit;
    let text = args.query.join(" ");
    let project = if args.semantic { Some(Arc::new(running::project(context)?)) } else { None };
    let query = args.query()?;
    let trust = User::find()?.trust()?;
    let embedder = project.as_ref().map(|project| embedder(project)).transpose()?;
    let (store, is_writable) = open(context)?;
    let mut vector = None;
    let mut words_alone = None;
    if let (Some(project), Some(embedder)) = (&project, &embedder) {
        match embed_query(&**embedder, &text, &Cancel::new()) {
            Ok(found) => vector = Some(found),
            Err(error) => words_alone = Some(error.to_string()),
        }
        // An embedder that gives no vector for the query gives none for passages.
        if is_writable && vector.is_some() {
            let cancel = running::cancelled_after(running::EFFECTS_TIME);
            let engine = Engine::new(running::options(&store, trust.clone()));
            EffectRunner::new(store.clone(), engine, project.clone()).run_one(Effect::Embeddings, &cancel);
        }
    }
    let asked = ThreadQuery { query, vector, only: None, limit: limit as usize };
    let found = found(&*store, &trust, &asked);
    if is_writable {
        context.close(store);
    }
    show(&ThreadsFound { words_alone, ..found? }, &asked, context)
}

/// Opens the store to write to its index, if there is a signing key; else to read.
fn open(context: &Context<'_>) -> Result<(Arc<dyn Backend>, bool)> {
    match User::find()?.signer() {
        Ok(_) => Ok((context.open(Access::ReadWrite)?, true)),
        Err(_) => Ok((context.open(Access::ReadOnly)?, false)),
    }
}

/// The embedder of the configuration.
fn embedder(project: &Project) -> Result<Arc<dyn Embedder>> {
    project.embedder()?.ok_or_else(|| {
        let message = "no embedder is configured, so there are no vectors to search by";
        Failure::new(Exit::Usage, "embedder_missing", message)
            .hint("set `embeddings.model`, to `hashing` for one that needs no model; or leave out `--semantic`")
    })
}

fn found(store: &dyn Backend, trust: &Trust, asked: &ThreadQuery) -> Result<ThreadsFound> {
    search_threads(store, store, trust, asked, &Cancel::new()).map_err(|error| Failure::of(&error))
}

impl Args {
    fn query(self) -> Result<Query> {
        let mut query = Query::parse(&self.query.join(" "), &read_since).map_err(|error| Failure::of(&error))?;
        let filters = &mut query.filters;
        filters.agents.extend(self.agent);
        filters.directives.extend(self.directive);
        filters.statuses.extend(self.status);
        filters.since = filters.since.max(self.since);
        Ok(query)
    }
}

fn show(found: &ThreadsFound, asked: &ThreadQuery, context: &Context<'_>) -> Result<()> {
    let output = context.output;
    if output.is_json() {
        return output.record(found);
    }
    let words = asked.query.expr.wanted();
    for (number, thread) in found.results.iter().enumerate() {
        if number > 0 {
            output.text("")?;
        }
        for line in lines(thread, &words) {
            output.text(line)?;
        }
    }
    if found.results.is_empty() {
        output.tell("no match");
    }
    if found.has_more {
        output.tell(format!("more threads match: add `--limit {}`", asked.limit * 2));
    }
    if !found.ignored.is_empty() {
        output.tell(format!("not searched for: {}", clean(&found.ignored.join(" "))));
    }
    if found.commits_not_searched > 0 {
        let commits = count(found.commits_not_searched, "commit");
        output.say(format!("{commits} not searched: the index can only be brought up to date with a signing key"));
    }
    if let Some(why) = &found.words_alone {
        output.say(format!("searched by words alone: {}", clean(why)));
    }
    if found.passages_without_vectors > 0 {
        let passages = count(found.passages_without_vectors, "passage");
        output.tell(format!("{passages} searched by words alone: vectors are made after runs and by this command"));
    }
    if let Some(left_out) = left_out(found.not_searched) {
        output.tell(left_out);
    }
    Ok(())
}

/// What was not searched, as a sentence.
pub(crate) fn left_out(not: NotSearched) -> Option<String> {
    let parts = [
        (not.blobs_not_text, "blob", "that is not text"),
        (not.blobs_cut, "blob", "of which only the first MiB was searched"),
        (not.blobs_unreadable, "blob", "that is missing or damaged"),
        (not.threads_unreadable, "thread", "whose log can't be read"),
    ];
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|(number, ..)| *number > 0)
        .map(|(number, noun, why)| format!("{} {why}", count(number, noun)))
        .collect();
    (!parts.is_empty()).then(|| format!("not searched: {}", parts.join("; ")))
}

fn lines(found: &ThreadFound, words: &[&str]) -> Vec<String> {
    let place = format!("{}:{}", found.thread_id, found.line_no);
    let title = found.title.as_deref().map(|title| format!("  {}", one_line(title, line_width()))).unwrap_or_default();
    let blob = found.blob.map(|blob| format!("  blob {}", blob.short())).unwrap_or_default();
    let mut lines =
        vec![format!("{}  {}  {}{blob}{title}", paint(BOLD, place), found.agent_id, local_minute(found.at))];
    if let Some(unverified) = &found.unverified {
        lines.push(paint(WARN, format!("  not verified: {}", one_line(&unverified.why, line_width()))));
    }
    let around = |name: &str, text: &Option<String>| {
        text.as_ref().map(|text| paint(DIM, format!("  {name} {}", one_line(text, line_width().saturating_sub(10)))))
    };
    lines.extend(around("before", &found.before));
    lines.extend(found.passage.as_deref().map(|passage| format!("  {}", excerpt(passage, words))));
    lines.extend(around("after ", &found.after));
    lines.push(paint(DIM, format!("  {}", found.command)));
    lines
}

/// The part of a passage around the first word that was searched for, on one line.
fn excerpt(passage: &str, words: &[&str]) -> String {
    let lower = passage.to_lowercase();
    // Lower case may have another length: the place is only about where to begin.
    let at = words.iter().filter_map(|word| lower.find(&word.to_lowercase())).min().unwrap_or_default();
    let from = passage.floor_char_boundary(at.saturating_sub(PASSAGE_CHARS / 3).min(passage.len()));
    let from = passage[..from].rfind(char::is_whitespace).filter(|_| from > 0).map_or(from, |space| space + 1);
    let from = passage.ceil_char_boundary(from);
    let shown = one_line(&passage[from..], PASSAGE_CHARS);
    if from > 0 { format!("…{shown}") } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_begins_near_the_first_word() {
        let long = format!("{} needle {}", "hay ".repeat(200), "straw ".repeat(200));
        let shown = excerpt(&long, &["needle"]);
        assert!(shown.starts_with('…') && shown.contains("needle") && shown.chars().count() <= PASSAGE_CHARS + 1);
        assert_eq!(excerpt("short text", &["absent"]), "short text");
        assert!(excerpt(&"İ".repeat(400), &["i̇"]).starts_with('İ'));
    }
}
