//! What has to outlive the process, in one SQLite file: the outbox, counts, conversations, versions.
//!
//! Each method is one transaction. A write is in the kernel's memory when it returns (WAL, synchronous NORMAL), so a
//! killed process loses nothing, and no answer waits for a disk; a host that loses power may lose the last moments.
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use openclaw_rl_client::delivery;
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

use crate::turns::Entry;

const SCHEMA: &str = "
PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA secure_delete = ON;
CREATE TABLE IF NOT EXISTS outbox (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL,
    session TEXT NOT NULL, at REAL NOT NULL DEFAULT (unixepoch('subsec')), payload BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS outbox_sizes ON outbox (session, length(payload));
CREATE TABLE IF NOT EXISTS aside (seq INTEGER PRIMARY KEY, id TEXT, session TEXT, reason TEXT, payload BLOB);
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS conversations (seq INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB UNIQUE, session TEXT);
CREATE TABLE IF NOT EXISTS forgotten (session TEXT PRIMARY KEY, before REAL NOT NULL);
CREATE TABLE IF NOT EXISTS versions (version INTEGER PRIMARY KEY, manifest BLOB NOT NULL, playbook BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS incoming (at INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);";

/// What waits. The index has all that is asked for, so a status does not read it.
const SUMS: &str = "SELECT count(*), coalesce(sum(length(payload)), 0) FROM outbox INDEXED BY outbox_sizes";
/// Conversations that are remembered; a turn makes one.
const CONVERSATIONS: i64 = 20_000;
/// Refused messages that are kept.
const ASIDE: i64 = 1_000;

/// The file `policy.db` in the data folder.
pub struct Store(Mutex<Connection>);

fn lost(error: rusqlite::Error) -> io::Error {
    io::Error::other(error)
}

impl Store {
    pub fn open(folder: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let db = Connection::open(folder.join("policy.db")).map_err(lost)?;
        db.busy_timeout(std::time::Duration::from_secs(5)).map_err(lost)?;
        db.execute_batch(SCHEMA).map_err(|error| match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DatabaseBusy) => {
                io::Error::other("another server uses it; give each its own --data")
            }
            _ => lost(error),
        })?;
        Ok(Self(Mutex::new(db)))
    }

    fn db(&self) -> MutexGuard<'_, Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One transaction.
    fn step<T>(&self, work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>) -> io::Result<T> {
        let mut db = self.db();
        let step = db.transaction().map_err(lost)?;
        let done = work(&step).map_err(lost)?;
        step.commit().map_err(lost)?;
        Ok(done)
    }

    /// Puts an event into the outbox; with it the conversation that it leaves behind, and a count.
    pub fn record(&self, entry: &Entry) -> io::Result<()> {
        let (id, session, payload) = (&entry.id, &entry.of, &entry.payload[..]);
        self.step(|step| {
            step.prepare_cached("INSERT OR IGNORE INTO outbox (id, session, payload) VALUES (?, ?, ?)")?
                .execute(params![id, session, payload])?;
            count(step, entry.counter)?;
            if let Some(key) = &entry.conversation {
                // What two sessions have in common is nobody's: such a request begins a session of its own.
                step.prepare_cached(
                    "INSERT INTO conversations (key, session) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET
                     session = CASE WHEN session = ?2 THEN ?2 END",
                )?
                .execute(params![key, session])?;
                step.prepare_cached("DELETE FROM conversations WHERE seq <= ?")?
                    .execute([step.last_insert_rowid() - CONVERSATIONS])?;
            }
            Ok(())
        })
    }

    /// Counts something.
    pub fn count(&self, counter: &str) {
        let _ = count(&self.db(), counter); // a count is no reason to fail
    }

    pub fn counters(&self) -> io::Result<BTreeMap<String, i64>> {
        let db = self.db();
        let mut rows = db.prepare_cached("SELECT name, value FROM counters").map_err(lost)?;
        let found = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).map_err(lost)?;
        found.collect::<rusqlite::Result<_>>().map_err(lost)
    }

    /// The session of a conversation; `None` when it is not known, or of more than one.
    pub fn conversation(&self, key: &[u8]) -> Option<String> {
        let db = self.db();
        let mut rows = db.prepare_cached("SELECT session FROM conversations WHERE key = ?").ok()?;
        rows.query_row([key], |row| row.get(0)).optional().ok()??
    }

    /// Age of the oldest message that waits, in seconds.
    pub fn oldest(&self) -> Option<f64> {
        let oldest = "SELECT unixepoch('subsec') - at FROM outbox ORDER BY seq LIMIT 1";
        self.db().query_row(oldest, [], |row| row.get(0)).ok()
    }

    /// Removes a session with its turns, and what comes late of it: what was asked for before `before` (seconds since
    /// 1970). Adds the ids of turns that waited to `turns`, and gives the number of conversations.
    pub fn forget(&self, session: &str, turns: &mut BTreeSet<String>, before: f64) -> io::Result<usize> {
        let found = self.step(|step| {
            let ids: Vec<String> = step
                .prepare("SELECT id FROM outbox WHERE session = ?1 UNION SELECT id FROM aside WHERE session = ?1")?
                .query_map([session], |row| row.get(0))?
                .collect::<rusqlite::Result<_>>()?;
            turns.extend(ids.into_iter().filter(|id| id.starts_with("turn")));
            for of in turns.iter().map(String::as_str).chain([session]) {
                step.execute("DELETE FROM outbox WHERE session = ?", [of])?;
                step.execute("DELETE FROM aside WHERE session = ?", [of])?;
            }
            let conversations = step.execute("DELETE FROM conversations WHERE session = ?", [session])?;
            step.execute("INSERT OR REPLACE INTO forgotten VALUES (?, ?)", params![session, before])?;
            Ok(conversations)
        })?;
        // Or its words stay in the log beside the file.
        self.db().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).map_err(lost)?;
        Ok(found)
    }

    /// Whether a session was forgotten after this moment (seconds since 1970).
    pub fn forgot(&self, session: &str, at: f64) -> bool {
        let db = self.db();
        let found =
            db.query_row("SELECT before FROM forgotten WHERE session = ?", [session], |row| row.get::<_, f64>(0));
        found.is_ok_and(|before| at < before)
    }

    pub fn meta(&self, name: &str) -> io::Result<Option<String>> {
        let found = self.db().query_row("SELECT value FROM meta WHERE name = ?", [name], |row| row.get(0));
        found.optional().map_err(lost)
    }

    /// Every version on disk: number, manifest, playbook.
    pub fn versions(&self) -> io::Result<Vec<(i64, Bytes, Bytes)>> {
        let db = self.db();
        let mut rows = db.prepare("SELECT version, manifest, playbook FROM versions").map_err(lost)?;
        let row = |row: &rusqlite::Row<'_>| {
            let (manifest, playbook): (Vec<u8>, Vec<u8>) = (row.get(1)?, row.get(2)?);
            Ok((row.get(0)?, manifest.into(), playbook.into()))
        };
        let found = rows.query_map([], row).map_err(lost)?;
        found.collect::<rusqlite::Result<_>>().map_err(lost)
    }

    /// A version that is complete, in place of the bytes that came of it.
    pub fn add_version(&self, version: i64, manifest: &[u8], playbook: &[u8]) -> io::Result<()> {
        self.step(|step| {
            step.execute("INSERT OR REPLACE INTO versions VALUES (?, ?, ?)", params![version, manifest, playbook])?;
            step.execute("DELETE FROM incoming", [])?;
            step.execute("DELETE FROM meta WHERE name = 'incoming'", [])?;
            Ok(())
        })
    }

    /// Writes down which version answers, and deletes versions.
    pub fn write_record(&self, record: &str, delete: &[i64]) -> io::Result<()> {
        self.step(|step| {
            step.execute("INSERT OR REPLACE INTO meta VALUES ('record', ?)", [record])?;
            for version in delete {
                step.execute("DELETE FROM versions WHERE version = ?", [version])?;
            }
            Ok(())
        })
    }

    /// What has come of a transfer; nothing of another one is kept.
    pub fn incoming(&self, transfer: &str) -> io::Result<Vec<u8>> {
        if self.meta("incoming")?.as_deref() != Some(transfer) {
            self.clear_incoming(Some(transfer))?;
            return Ok(Vec::new());
        }
        let db = self.db();
        let mut rows = db.prepare("SELECT data FROM incoming ORDER BY at").map_err(lost)?;
        let found = rows.query_map([], |row| row.get::<_, Vec<u8>>(0)).map_err(lost)?;
        let pieces: Vec<Vec<u8>> = found.collect::<rusqlite::Result<_>>().map_err(lost)?;
        Ok(pieces.concat())
    }

    /// The next bytes of the transfer.
    pub fn add_incoming(&self, at: usize, data: &[u8]) -> io::Result<()> {
        self.db().execute("INSERT INTO incoming VALUES (?, ?)", params![at as i64, data]).map_err(lost)?;
        Ok(())
    }

    /// Begins a transfer anew, or lets go of it.
    pub fn clear_incoming(&self, transfer: Option<&str>) -> io::Result<()> {
        self.step(|step| {
            step.execute("DELETE FROM incoming", [])?;
            step.execute("DELETE FROM meta WHERE name = 'incoming'", [])?;
            if let Some(transfer) = transfer {
                step.execute("INSERT INTO meta VALUES ('incoming', ?)", [transfer])?;
            }
            Ok(())
        })
    }
}

fn count(db: &Connection, counter: &str) -> rusqlite::Result<()> {
    db.prepare_cached("INSERT INTO counters VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET value = value + 1")?
        .execute([counter])?;
    Ok(())
}

/// The outbox, for `Delivery`.
impl delivery::Store for Store {
    fn put(&self, id: &str, payload: Bytes) -> io::Result<()> {
        let (id, of) = (id.into(), String::new());
        self.record(&Entry { id, of, payload, conversation: None, counter: "events_recorded" })
    }

    fn after(&self, position: u64, limit: usize, bytes: usize) -> io::Result<Vec<delivery::Entry>> {
        let db = self.db();
        let mut rows = db
            .prepare_cached("SELECT seq, id, payload FROM outbox WHERE seq > ? ORDER BY seq LIMIT ?")
            .map_err(lost)?;
        let mut rows = rows.query(params![position as i64, limit as i64]).map_err(lost)?;
        let (mut entries, mut size) = (Vec::new(), 0);
        while let Some(row) = rows.next().map_err(lost)? {
            let payload: Vec<u8> = row.get(2).map_err(lost)?;
            size += payload.len();
            if size > bytes && !entries.is_empty() {
                break;
            }
            entries.push(delivery::Entry {
                position: row.get::<_, i64>(0).map_err(lost)? as u64,
                id: row.get(1).map_err(lost)?,
                payload: payload.into(),
            });
        }
        Ok(entries)
    }

    fn settle(&self, ids: &[String]) -> io::Result<()> {
        self.step(|step| {
            for id in ids {
                step.prepare_cached("DELETE FROM outbox WHERE id = ?")?.execute([id])?;
            }
            Ok(())
        })
    }

    fn reject(&self, id: &str, reason: &str) -> io::Result<()> {
        self.step(|step| {
            step.execute(
                "INSERT INTO aside (id, session, reason, payload)
                 SELECT id, session, ?2, payload FROM outbox WHERE id = ?1",
                params![id, reason],
            )?;
            step.execute("DELETE FROM outbox WHERE id = ?", [id])?;
            step.execute("DELETE FROM aside WHERE seq <= (SELECT max(seq) FROM aside) - ?", [ASIDE])?;
            Ok(())
        })
    }

    fn pending(&self) -> io::Result<(u64, u64)> {
        let found = self.db().query_row(SUMS, [], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)));
        found.map(|(count, bytes)| (count as u64, bytes as u64)).map_err(lost)
    }
}

#[cfg(test)]
mod tests {
    use openclaw_rl_client::delivery::Store as _;

    use super::*;

    #[test]
    fn a_status_does_not_read_what_waits() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        assert_eq!((store.pending().unwrap(), store.oldest()), ((0, 0), None));
        store.put("turn_1", Bytes::from_static(b"abc")).unwrap();
        store.put("turn_2", Bytes::from_static(b"de")).unwrap();
        assert_eq!(store.pending().unwrap(), (2, 5));
        assert!(store.oldest().is_some_and(|age| (0.0..60.0).contains(&age)));
        let plan = format!("EXPLAIN QUERY PLAN {SUMS}");
        let plan: String = store.db().query_row(&plan, [], |row| row.get(3)).unwrap();
        assert!(plan.contains("COVERING INDEX"), "{plan}");
    }
}
