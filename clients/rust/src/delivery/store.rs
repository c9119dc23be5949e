use std::{
    collections::{BTreeMap, HashMap},
    io,
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;

/// A message as it is kept.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its place; later messages have higher ones.
    pub position: u64,
    /// Its id.
    pub id: String,
    /// The encoded message.
    pub payload: Bytes,
}

/// Where messages wait for their acknowledgement. Methods may block: they are called on threads of their own, but for
/// `put` and `pending`, which are called where the caller is.
pub trait Store: Send + Sync + 'static {
    /// Keeps a message. One whose id waits already stays as it is.
    fn put(&self, id: &str, payload: Bytes) -> io::Result<()>;
    /// Messages behind a position (0: from the first one), oldest first: at most `limit`, and, but for a single one,
    /// `bytes`.
    fn after(&self, position: u64, limit: usize, bytes: usize) -> io::Result<Vec<Entry>>;
    /// Forgets messages that were acknowledged; those that aren't there are passed over.
    fn settle(&self, ids: &[String]) -> io::Result<()>;
    /// Sets a message aside that will never be taken.
    fn reject(&self, id: &str, reason: &str) -> io::Result<()>;
    /// Number of messages that wait, and their bytes.
    fn pending(&self) -> io::Result<(u64, u64)>;
}

/// Holds messages as long as the process lives.
#[derive(Default)]
pub struct MemoryStore(Mutex<Memory>);

#[derive(Default)]
struct Memory {
    last: u64,
    bytes: u64,
    messages: BTreeMap<u64, (String, Bytes)>,
    places: HashMap<String, u64>,
}

impl Memory {
    fn remove(&mut self, id: &str) {
        if let Some((_, payload)) = self.places.remove(id).and_then(|place| self.messages.remove(&place)) {
            self.bytes -= payload.len() as u64;
        }
    }
}

impl MemoryStore {
    fn memory(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn put(&self, id: &str, payload: Bytes) -> io::Result<()> {
        let mut memory = self.memory();
        if memory.places.contains_key(id) {
            return Ok(());
        }
        memory.last += 1;
        memory.bytes += payload.len() as u64;
        let place = memory.last;
        memory.places.insert(id.to_owned(), place);
        memory.messages.insert(place, (id.to_owned(), payload));
        Ok(())
    }

    fn after(&self, position: u64, limit: usize, bytes: usize) -> io::Result<Vec<Entry>> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut size = 0;
        for (&position, (id, payload)) in self.memory().messages.range(position + 1..).take(limit) {
            size += payload.len();
            if size > bytes && !entries.is_empty() {
                break;
            }
            entries.push(Entry { position, id: id.clone(), payload: payload.clone() });
        }
        Ok(entries)
    }

    fn settle(&self, ids: &[String]) -> io::Result<()> {
        let mut memory = self.memory();
        ids.iter().for_each(|id| memory.remove(id));
        Ok(())
    }

    fn reject(&self, id: &str, _: &str) -> io::Result<()> {
        self.memory().remove(id);
        Ok(())
    }

    fn pending(&self) -> io::Result<(u64, u64)> {
        let memory = self.memory();
        Ok((memory.messages.len() as u64, memory.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_their_order_and_bounds() {
        let store = MemoryStore::default();
        for id in ["a", "b", "c", "a"] {
            store.put(id, Bytes::from(vec![0; 10])).unwrap();
        }
        let ids = |entries: Vec<Entry>| entries.into_iter().map(|e| e.id).collect::<Vec<_>>();
        assert_eq!(ids(store.after(0, 9, 100).unwrap()), ["a", "b", "c"]);
        assert_eq!(ids(store.after(0, 9, 20).unwrap()), ["a", "b"]);
        assert_eq!(ids(store.after(0, 9, 1).unwrap()), ["a"], "one always fits");
        assert_eq!(ids(store.after(1, 1, 100).unwrap()), ["b"]);
        store.settle(&["b".into(), "unknown".into()]).unwrap();
        store.reject("a", "why").unwrap();
        assert_eq!(ids(store.after(0, 9, 100).unwrap()), ["c"]);
        assert_eq!(store.pending().unwrap(), (1, 10));
    }
}
