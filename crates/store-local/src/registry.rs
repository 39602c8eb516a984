//! Finding and listing threads.

use std::collections::HashMap;

use rusqlite::named_params;
use selvedge_model::{AgentId, DirectiveId, OwnerId, Status, ThreadId};
use selvedge_store::{Cursor, Error, Filter, Page, Result, Summary};

use crate::core::Core;
use crate::rows::{self, Row, signed, unsigned};
use crate::schema::database;

impl Core {
    /// The summaries of threads. Whether an owner is alive is checked once for each owner, not for each thread.
    pub(crate) fn summaries(&self, rows: Vec<Row>) -> Result<Vec<Summary>> {
        let mut known: HashMap<OwnerId, bool> = HashMap::new();
        let mut found = Vec::with_capacity(rows.len());
        for mut row in rows {
            let was_held = row.owner.is_some();
            let mut holder = self.live(row.owner.take(), &mut known)?;
            if was_held && holder.is_none() && row.manifest.status == Status::Running {
                // Its owner may have ended the run after the row was read, and died after that.
                let Some(mut now) = self.read(|connection| rows::find(connection, &row.manifest.thread_id))? else {
                    continue;
                };
                holder = self.live(now.owner.take(), &mut known)?;
                row = now;
            }
            found.push(Summary { version: row.head.version, manifest: row.manifest, holder });
        }
        Ok(found)
    }

    fn live(&self, owner: Option<OwnerId>, known: &mut HashMap<OwnerId, bool>) -> Result<Option<OwnerId>> {
        let Some(owner) = owner else { return Ok(None) };
        let lives = match known.get(&owner) {
            Some(lives) => *lives,
            None => {
                let lives = self.is_alive(&owner)?;
                known.insert(owner.clone(), lives);
                lives
            }
        };
        Ok(lives.then_some(owner))
    }

    /// The summary of a thread; refused if its row is older than its log, because then it shows what the thread was before.
    pub(crate) fn summary(&self, thread: &ThreadId) -> Result<Summary> {
        let row = self.read(|connection| rows::existing(connection, thread))?;
        self.refuse_outdated_row(thread, &row)?;
        match self.summaries(vec![row])?.pop() {
            Some(summary) => Ok(summary),
            None => Err(self.read(|connection| Ok(rows::missing(connection, thread)))?),
        }
    }

    pub(crate) fn children(&self, thread: &ThreadId) -> Result<Vec<Summary>> {
        let condition = "t.parent_id = ? ORDER BY t.id";
        let mut found = self.read(|connection| rows::select(connection, condition, [thread.as_str()]))?;
        // An index says where to look; whose child a thread is, its sealed manifest says.
        found.retain(|row| row.manifest.parent_id.as_ref() == Some(thread));
        for row in &found {
            self.refuse_outdated_row(&row.manifest.thread_id, row)?;
        }
        self.summaries(found)
    }

    pub(crate) fn list(&self, filter: &Filter, after: Option<Cursor>, limit: usize) -> Result<Page<Summary>> {
        let Filter { agent_id, directive, status, parent_id, text } = filter;
        let mut conditions = vec!["t.id < :before"];
        let conditions_set = [
            (agent_id.is_some(), "t.agent_id = :agent"),
            (directive.is_some(), "t.directive = :directive"),
            (status.is_some(), "t.status = :status"),
            (parent_id.is_some(), "t.parent_id = :parent"),
            (text.is_some(), "(instr(t.thread_id, :text) OR instr(lower_case(t.title), :text))"),
        ];
        conditions.extend(conditions_set.iter().filter(|(is_set, _)| *is_set).map(|(_, condition)| *condition));
        // Every named parameter must occur in the statement.
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
        for row in &found {
            // The others are listed all the same; who acts on a row gets it by name, and is refused there.
            if let Err(error) = self.refuse_outdated_row(&row.manifest.thread_id, row) {
                self.note_problem(error.to_string());
            }
        }
        Ok(Page { items: self.summaries(found)?, next })
    }

    /// The threads of a chain. A walk passes through deleted threads, by their signed tombstones; one that fails verification ends it.
    pub(crate) fn chain(&self, thread: &ThreadId) -> Result<Vec<Summary>> {
        let rows = self.read(|connection| {
            rows::existing(connection, thread)?;
            let manifest = |id: &ThreadId| match rows::find(connection, id)? {
                Some(row) => Ok(Some(row.manifest)),
                None => Ok(self.tombstone_in(connection, id).ok().flatten().map(|tombstone| tombstone.manifest)),
            };
            let ids = selvedge_store::chain::walk(thread, manifest)?;
            let found = ids.iter().filter_map(|id| rows::find(connection, id).transpose());
            found.collect()
        })?;
        self.summaries(rows)
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
            // An index says where to look; what a thread is called, its sealed row says.
            for name in &candidates {
                let id = ThreadId::new(name.as_str()).map_err(rows::bad_row)?;
                let is_meant = id.as_str().starts_with(prefix) || id.hex().is_some_and(|hex| hex.starts_with(prefix));
                if !is_meant || rows::find(connection, &id)?.is_none() {
                    return Err(rows::bad_row("an index of thread names was changed"));
                }
            }
            match (candidates.as_slice(), exact) {
                ([one], _) => ThreadId::new(one.as_str()).map_err(rows::bad_row),
                ([], Some(id)) => Err(rows::missing(connection, &id)),
                ([], None) => Err(Error::NoThread(prefix.to_owned())),
                _ => Err(Error::Ambiguous { prefix: prefix.to_owned(), candidates }),
            }
        })
    }
}
