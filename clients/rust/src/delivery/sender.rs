//! One stream after the other: what is not acknowledged is sent, and sent again.
use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::Instant;

use super::{Entry, Event, RingMessage, Shared, Store};
use crate::{
    Code, Dialogue, Error, Result,
    stream::Pauses,
    v1::{Ack, AckStatus},
};

/// Payload bytes of one request, unless a single message has more.
const REQUEST_BYTES: usize = 1 << 20;
/// Bytes that a request has beside a message.
const ENVELOPE: usize = 1024;

pub(super) async fn run<M: RingMessage>(shared: Arc<Shared>) {
    let mut pauses = Pauses::default();
    loop {
        let mut stream = Stream::<M>::open(&shared);
        let Err(error) = stream.converse().await;
        let error = error.with_message_prefix(shared.connection.address());
        shared.state().opened = Arc::default();
        shared.state().last_error = error.to_string();
        let _ = shared.events.send(Event::Broken(error.clone()));
        if stream.progress {
            pauses = Pauses::default();
        }
        drop(stream); // cancels the call
        tokio::time::sleep(pauses.after(Some(&error))).await;
    }
}

struct Stream<'a, M: RingMessage> {
    shared: &'a Shared,
    dialogue: Dialogue<M::Request, M::Answer>,
    cursor: u64,
    in_flight: BTreeMap<u64, String>,
    places: HashMap<String, u64>,
    /// When the oldest message in flight became the oldest.
    oldest_since: Instant,
    /// Answered not long ago: a second answer is no fault.
    answered: (HashSet<String>, VecDeque<String>),
    progress: bool,
}

impl<'a, M: RingMessage> Stream<'a, M> {
    fn open(shared: &'a Shared) -> Self {
        let connection = &shared.connection;
        let dialogue = Dialogue::open(connection, |requests| M::open(connection, requests));
        shared.state().opened = dialogue.opened();
        Self {
            shared,
            dialogue,
            cursor: 0,
            in_flight: BTreeMap::new(),
            places: HashMap::new(),
            oldest_since: Instant::now(),
            answered: Default::default(),
            progress: false,
        }
    }

    /// Sends and settles until the stream breaks.
    async fn converse(&mut self) -> std::result::Result<std::convert::Infallible, Error> {
        let sender = self.dialogue.sender().expect("it was opened just now");
        let mut waiting: Option<M::Request> = None;
        loop {
            if waiting.is_none() {
                waiting = self.next_request().await?;
            }
            let late = self.oldest_since + self.shared.options.ack_timeout;
            tokio::select! {
                permit = sender.reserve(), if waiting.is_some() => match permit {
                    Ok(permit) => permit.send(waiting.take().expect("looked at just now")),
                    Err(_) => waiting = None, // the call has ended; its answer says why
                },
                answer = self.dialogue.next() => match answer {
                    Some(answer) => self.take(M::acks(answer?)).await?,
                    None => return Err(Error::unavailable("it has ended the stream", Duration::ZERO)),
                },
                () = self.shared.wake.notified(), if waiting.is_none() => {}
                () = tokio::time::sleep_until(late), if !self.in_flight.is_empty() => {
                    let id = self.in_flight.values().next().map_or("", String::as_str);
                    let seconds = self.shared.options.ack_timeout.as_secs_f64();
                    return Err(Error::new(Code::Unavailable, "NOT_ACKNOWLEDGED", format!(
                        "no answer to {id} for {seconds} s: the component hangs, or it never acknowledges"
                    )));
                }
            }
        }
    }

    /// The next messages that may be sent.
    async fn next_request(&mut self) -> Result<Option<M::Request>> {
        loop {
            let free = self.shared.options.window.saturating_sub(self.in_flight.len());
            let limit = free.min(self.shared.options.batch);
            if limit == 0 {
                return Ok(None);
            }
            let cursor = self.cursor;
            let entries = self.store(move |store| store.after(cursor, limit, REQUEST_BYTES)).await?;
            let Some(last) = entries.last() else {
                return Ok(None);
            };
            self.cursor = last.position;
            let mut messages = Vec::with_capacity(entries.len());
            for entry in entries {
                match self.readable(&entry) {
                    Ok(message) => {
                        if self.in_flight.is_empty() {
                            self.oldest_since = Instant::now();
                        }
                        self.places.insert(entry.id.clone(), entry.position);
                        self.in_flight.insert(entry.position, entry.id);
                        messages.push(message);
                    }
                    Err(why) => self.reject(entry.id, why).await?,
                }
            }
            if !messages.is_empty() {
                return Ok(Some(M::request(messages)));
            }
        }
    }

    fn readable(&self, entry: &Entry) -> std::result::Result<M, String> {
        let most = self.shared.connection.message_limit().saturating_sub(ENVELOPE);
        if entry.payload.len() > most {
            return Err(format!("it has {} bytes, more than {most}", entry.payload.len()));
        }
        M::decode(entry.payload.clone()).map_err(|error| format!("it can't be read: {error}"))
    }

    async fn take(&mut self, acks: Vec<Ack>) -> Result<()> {
        let mut settled = Vec::new();
        let mut rejected = Vec::new();
        let mut foreign = None;
        for ack in acks {
            let Some(place) = self.places.remove(&ack.id) else {
                if !self.answered.0.contains(&ack.id) {
                    foreign = Some(ack.id);
                }
                continue;
            };
            self.remember(&ack.id);
            if self.in_flight.first_key_value().is_some_and(|(&first, _)| first == place) {
                self.oldest_since = Instant::now();
            }
            self.in_flight.remove(&place);
            match ack.status() {
                AckStatus::Accepted | AckStatus::Duplicate => settled.push(ack.id),
                AckStatus::Rejected => rejected.push((ack.id, ack.reason)),
                AckStatus::Unspecified => {
                    return Err(protocol(format!("its answer to {} says neither yes nor no", ack.id)));
                }
            }
        }
        if !settled.is_empty() {
            let ids = settled.clone();
            self.store(move |store| store.settle(&ids)).await?;
            self.progress = true;
            self.shared.state().last_error.clear();
            self.shared.delivered.fetch_add(settled.len() as u64, Ordering::Relaxed);
            let _ = self.shared.events.send(Event::Acknowledged(settled));
        }
        for (id, reason) in rejected {
            self.progress = true;
            self.reject(id, reason).await?;
        }
        self.shared.settled.notify_waiters();
        match foreign {
            Some(id) => Err(protocol(format!("it acknowledged {id:?}, which was never sent to it"))),
            None => Ok(()),
        }
    }

    async fn reject(&mut self, id: String, reason: String) -> Result<()> {
        let entry = (id.clone(), reason.clone());
        self.store(move |store| store.reject(&entry.0, &entry.1)).await?;
        self.shared.rejected.fetch_add(1, Ordering::Relaxed);
        let _ = self.shared.events.send(Event::Rejected { id, reason });
        self.shared.settled.notify_waiters();
        Ok(())
    }

    fn remember(&mut self, id: &str) {
        let (known, order) = &mut self.answered;
        known.insert(id.to_owned());
        order.push_back(id.to_owned());
        if order.len() > 8 * self.shared.options.window
            && let Some(oldest) = order.pop_front()
        {
            known.remove(&oldest);
        }
    }

    async fn store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Store) -> io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let store = Arc::clone(&self.shared.store);
        tokio::task::spawn_blocking(move || work(&*store))
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)))
            .map_err(|error| Error::new(Code::Internal, "STORE_UNUSABLE", format!("the store can't be used: {error}")))
    }
}

fn protocol(text: String) -> Error {
    Error::new(Code::Internal, "PROTOCOL", text)
}
