//! The vectors of passages in the index.
//!
//! Invariants:
//!
//! - A passage is in `vectors` or in `unembedded`, and never in both.
//! - Every line in the files of embeddings is here too, if those files are as long as `embedded_bytes` says; else they are read again before a
//!   passage is embedded, so that none is embedded twice, and no run reads all of them.
//! - All vectors are of the embedder that `meta` names.

use std::collections::HashMap;

use rusqlite::{Connection, params};
use selvedge_store::Result;
use selvedge_store::search::UnembeddedPassage;

use super::{execute, failed, hit, meta, set_meta, transaction};
use crate::core::Core;
use crate::rows::{signed, unsigned};

/// The name of the length of all files of embeddings up to which they are in the index.
const EMBEDDED: &str = "embedded_bytes";

/// Passages without a vector of this embedder, at most `limit`, the newest first.
pub(super) fn pending(
    core: &Core,
    connection: &Connection,
    name: &str,
    dimensions: usize,
    limit: usize,
) -> Result<Vec<UnembeddedPassage>> {
    let wanted = embedder(name, dimensions);
    let files = core.embedded_bytes()?.to_string();
    let is_of_embedder = meta(connection, "embedder")?.as_ref() == Some(&wanted);
    if !is_of_embedder || meta(connection, EMBEDDED)?.as_ref() != Some(&files) {
        transaction(connection, || {
            if !is_of_embedder {
                execute(connection, "DELETE FROM vectors", [])?;
                execute(connection, "INSERT OR IGNORE INTO unembedded (document) SELECT id FROM documents", [])?;
                set_meta(connection, "embedder", &wanted)?;
            }
            restore(core, connection, name, dimensions)?;
            set_meta(connection, EMBEDDED, &files)
        })?;
    }
    let sql = "SELECT document FROM unembedded ORDER BY document DESC LIMIT ?";
    let mut statement = connection.prepare_cached(sql).map_err(failed)?;
    let found = statement.query_map([signed(limit as u64)], |row| row.get(0)).map_err(failed)?;
    let found: Vec<i64> = found.collect::<rusqlite::Result<_>>().map_err(failed)?;
    found.into_iter().map(|document| Ok(UnembeddedPassage { document, hit: hit(connection, document)? })).collect()
}

/// Stores the vectors of passages.
pub(super) fn put(
    core: &Core,
    connection: &Connection,
    name: &str,
    vectors: &[(UnembeddedPassage, Vec<f32>)],
) -> Result<()> {
    transaction(connection, || {
        let known = meta(connection, "embedder")?;
        let mut is_all = true;
        for (pending, vector) in vectors {
            if known != Some(embedder(name, vector.len())) {
                is_all = false;
                continue;
            }
            let bytes: Vec<u8> = vector.iter().flat_map(|one| one.to_le_bytes()).collect();
            let sql = "INSERT OR REPLACE INTO vectors (document, vector) \
                       SELECT id, ?2 FROM documents WHERE id = ?1 AND digest = ?3";
            let mut statement = connection.prepare_cached(sql).map_err(failed)?;
            let values = params![pending.document, bytes, pending.hit.digest];
            is_all &= statement.execute(values).map_err(failed)? == 1;
            let sql = "DELETE FROM unembedded WHERE document IN (SELECT document FROM vectors WHERE document = ?)";
            execute(connection, sql, [pending.document])?;
        }
        if is_all {
            return set_meta(connection, EMBEDDED, &core.embedded_bytes()?.to_string());
        }
        // What is in the files and not here is looked for by the next call of `pending_vectors`.
        forget_files(connection)
    })
}

/// The files of embeddings have to be read again: what is in them may not be here.
pub(super) fn forget_files(connection: &Connection) -> Result<()> {
    execute(connection, "DELETE FROM meta WHERE name = ?", [EMBEDDED])
}

/// Takes over the vectors that are in the files of agents, so that no endpoint is asked for them again.
fn restore(core: &Core, connection: &Connection, name: &str, dimensions: usize) -> Result<()> {
    if core.embedding_files()?.is_empty() {
        return Ok(());
    }
    let sql = "SELECT d.id, t.thread_id, d.line, d.blob, d.offset, d.digest FROM documents AS d JOIN threads AS t ON t.id = d.thread";
    let mut statement = connection.prepare(sql).map_err(failed)?;
    let mut found = statement.query([]).map_err(failed)?;
    let mut documents = HashMap::new();
    while let Some(row) = found.next().map_err(failed)? {
        let number = |column: usize| row.get::<_, i64>(column).map_err(failed);
        let blob: Option<Vec<u8>> = row.get(3).map_err(failed)?;
        let place =
            (row.get::<_, String>(1).map_err(failed)?, unsigned(number(2)?), blob, unsigned(number(4)?), number(5)?);
        documents.insert(place, number(0)?);
    }
    let mut done = Ok(());
    core.each_embedding(name, &mut |one| {
        let blob = one.blob.map(|blob| blob.0.to_vec());
        let place = (one.thread_id.to_string(), one.line, blob, one.offset, one.digest);
        let vector = one.bytes().filter(|bytes| bytes.len() == dimensions * 4);
        if let (Some(id), Some(vector), Ok(())) = (documents.get(&place), vector, &done) {
            let sql = "INSERT OR REPLACE INTO vectors (document, vector) VALUES (?, ?)";
            done = execute(connection, sql, params![id, vector])
                .and_then(|()| execute(connection, "DELETE FROM unembedded WHERE document = ?", [id]));
        }
    })?;
    done
}

/// An embedder as the index records it.
pub(super) fn embedder(name: &str, dimensions: usize) -> String {
    format!("{dimensions} {name}")
}
