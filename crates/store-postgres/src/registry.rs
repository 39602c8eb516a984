//! Finding threads. The columns that a statement looks at are hints; what is returned is parsed from the sealed manifest and compared with
//! the filter again.

use selvedge_model::{Manifest, Run, RunId, Status, ThreadId};
use selvedge_store::{Cursor, Error, Filter, Page, Result, Summary};

use crate::core::Core;
use crate::rows::{self, COLUMNS, Row};

/// The most candidates that an ambiguous prefix names.
const CANDIDATES: i64 = 6;

impl Row {
    fn summary(self) -> Summary {
        let holder = self.owner.filter(|_| self.is_alive);
        Summary { version: self.head.version, manifest: self.manifest, holder }
    }
}

impl Core {
    pub(crate) fn summary(&self, thread: &ThreadId) -> Result<Summary> {
        Ok(self.existing(thread)?.summary())
    }

    pub(crate) fn list(&self, filter: &Filter, after: Option<Cursor>, limit: usize) -> Result<Page<Summary>> {
        let Filter { agent_id, directive, status, parent_id, text } = filter;
        let sql = format!(
            "SELECT {COLUMNS} FROM threads AS t WHERE t.number < $1 AND ($2::text IS NULL OR t.agent = $2) \
             AND ($3::text IS NULL OR t.directive = $3) AND ($4::text IS NULL OR t.status = $4) \
             AND ($5::text IS NULL OR t.parent = $5) \
             AND ($6::text IS NULL OR position($6 in t.thread) > 0 OR position($6 in COALESCE(t.title, '')) > 0) \
             ORDER BY t.number DESC LIMIT $7"
        );
        let before = after.map_or(i64::MAX, |cursor| rows::signed(cursor.0));
        let agent = agent_id.as_ref().map(|agent| agent.as_str());
        let directive = directive.as_ref().map(|directive| directive.as_str());
        let status = status.map(Status::as_str);
        let parent = parent_id.as_ref().map(|parent| parent.as_str());
        let text = text.as_deref().map(rows::lower);
        let most = rows::signed((limit as u64).saturating_add(1));
        let found = self.read(|connection| {
            Ok(connection.query(&sql, &[&before, &agent, &directive, &status, &parent, &text, &most])?)
        })?;
        let mut items = Vec::new();
        let mut next = None;
        let is_more = found.len() > limit;
        for row in found.into_iter().take(limit) {
            let row = Row::read(&row, self.seals())?;
            next = Some(Cursor(rows::unsigned(row.number)));
            items.push(row.summary());
        }
        Ok(Page { items, next: next.filter(|_| is_more) })
    }

    pub(crate) fn chain(&self, thread: &ThreadId) -> Result<Vec<Summary>> {
        self.existing(thread)?;
        let manifest = |id: &ThreadId| -> Result<Option<Manifest>> {
            match self.find(id)? {
                Some(row) => Ok(Some(row.manifest)),
                None => Ok(self.tombstone(id)?.map(|tombstone| tombstone.manifest)),
            }
        };
        let ids = selvedge_store::chain::walk(thread, manifest)?;
        let mut found = Vec::new();
        for id in ids {
            found.extend(self.find(&id)?.map(Row::summary));
        }
        Ok(found)
    }

    pub(crate) fn children(&self, thread: &ThreadId) -> Result<Vec<Summary>> {
        let sql = format!("SELECT {COLUMNS} FROM threads AS t WHERE t.parent = $1 ORDER BY t.number");
        let found = self.read(|connection| Ok(connection.query(&sql, &[&thread.as_str()])?))?;
        found.iter().map(|row| Ok(Row::read(row, self.seals())?.summary())).collect()
    }

    /// The runs of a thread, oldest first, or one of them.
    pub(crate) fn stored_runs(&self, row: &Row, run: Option<&RunId>) -> Result<Vec<Run>> {
        let sql = "SELECT run, body, updated_at, mark FROM runs WHERE root = $1 AND thread = $2 AND ($3::text IS NULL OR run = $3) \
                   ORDER BY number";
        let values = (row.root.as_str(), row.thread().as_str(), run.map(RunId::as_str));
        let found = self.read(|connection| Ok(connection.query(sql, &[&values.0, &values.1, &values.2])?))?;
        let mut runs = Vec::new();
        for one in found {
            let (name, body): (String, String) = (one.get(0), one.get(1));
            let fields = [row.head.log_id.as_str().as_bytes(), name.as_bytes(), body.as_bytes()];
            let what = || format!("run `{name}` of thread `{}`", row.thread());
            rows::check(self.seals(), "runs", &fields, one.get(3), what)?;
            let run: Run = rows::json(&body)?;
            runs.push(Run { updated_at: selvedge_model::Timestamp::from_micros(one.get(2)), ..run });
        }
        Ok(runs)
    }

    pub(crate) fn resolve(&self, prefix: &str) -> Result<ThreadId> {
        let exact = ThreadId::new(prefix).ok();
        if prefix.contains('\0') {
            return Err(Error::NoThread(prefix.to_owned()));
        }
        if let Some(id) = &exact
            && self.find(id)?.is_some()
        {
            return Ok(id.clone());
        }
        let pattern = format!("{}%", prefix.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_"));
        let sql = "SELECT thread FROM threads WHERE thread LIKE $1 OR hex LIKE $1 ORDER BY thread LIMIT $2";
        let found = self.read(|connection| Ok(connection.query(sql, &[&pattern, &CANDIDATES])?))?;
        let mut candidates: Vec<String> = found.iter().map(|row| row.get(0)).collect();
        match (prefix.is_empty(), candidates.len()) {
            (false, 1) => rows::id(candidates.remove(0)),
            (true, _) | (_, 0) => Err(match exact {
                Some(id) => self.missing(&id)?,
                None => Error::NoThread(prefix.to_owned()),
            }),
            _ => Err(Error::Ambiguous { prefix: prefix.to_owned(), candidates }),
        }
    }
}
