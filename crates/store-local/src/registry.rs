//! Finding threads.

use rusqlite::named_params;
use selvedge_model::{AgentId, DirectiveId, Status, ThreadId};
use selvedge_store::{Cursor, Error, Filter, Page, Result, Summary};

use crate::core::Core;
use crate::rows::{self, Row, signed, unsigned};
use crate::schema::database;

pub(crate) fn summary(row: Row) -> Summary {
    Summary { version: row.head.version, manifest: row.manifest }
}

impl Core {
    pub(crate) fn list(&self, filter: &Filter, after: Option<Cursor>, limit: usize) -> Result<Page<Summary>> {
        let Filter { agent_id, directive, status, parent_id, text } = filter;
        let mut conditions = vec!["t.id < :before"];
        let asked = [
            (agent_id.is_some(), "t.agent_id = :agent"),
            (directive.is_some(), "t.directive = :directive"),
            (status.is_some(), "t.status = :status"),
            (parent_id.is_some(), "t.parent_id = :parent"),
            (text.is_some(), "(instr(t.thread_id, :text) OR instr(lower_case(t.title), :text))"),
        ];
        conditions.extend(asked.iter().filter(|(asked, _)| *asked).map(|(_, condition)| *condition));
        // Every name must stand in the statement, asked for or not.
        let unused = ":agent IS :agent AND :directive IS :directive AND :status IS :status AND :parent IS :parent AND :text IS :text";
        let condition = format!("{} AND {unused} ORDER BY t.id DESC LIMIT :limit", conditions.join(" AND "));
        let mut found = self.read(|connection| {
            rows::select(
                connection,
                &condition,
                named_params! {
                    ":before": after.map_or(i64::MAX, |cursor| signed(cursor.0)),
                    ":agent": agent_id.as_ref().map(AgentId::as_str),
                    ":directive": directive.as_ref().map(DirectiveId::as_str),
                    ":status": status.map(Status::as_str),
                    ":parent": parent_id.as_ref().map(ThreadId::as_str),
                    ":text": text.as_ref().map(|text| text.to_lowercase()),
                    ":limit": signed(limit as u64 + 1),
                },
            )
        })?;
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more).map(|last| Cursor(unsigned(last.id)));
        Ok(Page { items: found.into_iter().map(summary).collect(), next })
    }

    pub(crate) fn chain(&self, thread: &ThreadId) -> Result<Vec<Summary>> {
        self.read(|connection| {
            rows::existing(connection, thread)?;
            let manifest = |id: &ThreadId| match rows::find(connection, id)? {
                Some(row) => Ok(Some(row.manifest)),
                None => Ok(rows::tombstone(connection, id)?.map(|tombstone| tombstone.manifest)),
            };
            let ids = selvedge_store::chain::walk(thread, manifest)?;
            let found = ids.iter().filter_map(|id| rows::find(connection, id).transpose());
            found.map(|row| row.map(summary)).collect()
        })
    }

    pub(crate) fn resolve(&self, prefix: &str) -> Result<ThreadId> {
        let exact = ThreadId::new(prefix).ok();
        self.read(|connection| {
            if let Some(row) = exact.as_ref().map(|id| rows::find(connection, id)).transpose()?.flatten() {
                return Ok(row.manifest.thread_id);
            }
            if prefix.is_empty() {
                return Err(Error::NoThread(String::new()));
            }
            // Ids have only ASCII characters, all of them below this end.
            let end = format!("{prefix}\u{7f}");
            let sql = "SELECT thread_id FROM threads WHERE thread_id >= ?1 AND thread_id < ?2 \
                       UNION SELECT thread_id FROM threads WHERE hex >= ?1 AND hex < ?2 ORDER BY thread_id LIMIT 6";
            let mut statement = connection.prepare_cached(sql).map_err(database)?;
            let found = statement.query_map([prefix, &end], |row| row.get::<_, String>(0)).map_err(database)?;
            let candidates = found.collect::<rusqlite::Result<Vec<_>>>().map_err(database)?;
            match (candidates.as_slice(), exact) {
                ([one], _) => ThreadId::new(one.as_str()).map_err(rows::bad_row),
                ([], Some(id)) => Err(rows::missing(connection, &id)),
                ([], None) => Err(Error::NoThread(prefix.to_owned())),
                _ => Err(Error::Ambiguous { prefix: prefix.to_owned(), candidates }),
            }
        })
    }
}
