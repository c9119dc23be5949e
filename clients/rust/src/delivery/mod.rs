//! The ring's streams: messages with ids that are sent again until the next component has acknowledged them.
//!
//! ```no_run
//! # use openclaw_rl_client::{EnvironmentClient, delivery::Delivery, v1};
//! # async fn example(event: v1::PolicyEvent) -> Result<(), Box<dyn std::error::Error>> {
//! let environment = EnvironmentClient::builder().connect_lazy()?;
//! let delivery = Delivery::builder(environment.connection()).start();
//! delivery.put(&event)?; // kept until it is acknowledged, whatever happens to the connection
//! delivery.flushed().await;
//! # Ok(())
//! # }
//! ```
//! At most `window` messages are under way. After a broken stream the connection is made anew, with growing pauses, and
//! all that is not acknowledged is sent once more, in order; the receiver knows by the ids what it has already. A peer
//! that does not answer within `ack_timeout` is given up and connected again. What the peer rejects is told and set
//! aside. An answer to an id that was never sent is a fault of the peer: it is told, and settles nothing.
//!
//! [`MemoryStore`] holds messages as long as the process lives; a server puts its database behind [`Store`].

mod ring;
mod sender;
mod store;

use std::{
    io,
    marker::PhantomData,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Notify, broadcast};

pub use ring::RingMessage;
pub use store::{Entry, MemoryStore, Store};

use crate::{Connection, Error, stream::AbortOnDrop};

/// What happened to messages.
#[derive(Clone, Debug)]
pub enum Event {
    /// These are on the receiver's disk; they are forgotten here.
    Acknowledged(Vec<String>),
    /// The receiver will never take it, or it can't be sent; it was set aside.
    Rejected {
        /// Its id.
        id: String,
        /// Why, for a person.
        reason: String,
    },
    /// The stream broke, or did not come about; another one is opened after a pause.
    Broken(Error),
}

/// Figures of a delivery.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Messages that wait for their acknowledgement.
    pub pending: u64,
    /// Their bytes.
    pub pending_bytes: u64,
    /// Messages that were acknowledged since the start.
    pub delivered: u64,
    /// Messages that were rejected since the start.
    pub rejected: u64,
    /// The stream is open.
    pub connected: bool,
    /// What broke the last one; empty when the stream is well.
    pub last_error: String,
}

/// Options of a [`Delivery`].
pub struct Builder<M> {
    connection: Connection,
    store: Arc<dyn Store>,
    options: Options,
    message: PhantomData<M>,
}

#[derive(Clone)]
struct Options {
    window: usize,
    batch: usize,
    ack_timeout: Duration,
}

impl<M: RingMessage> Builder<M> {
    /// Where messages are kept; default in memory.
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = store;
        self
    }

    /// Most messages under way; default 256.
    pub fn window(mut self, messages: usize) -> Self {
        self.options.window = messages.max(1);
        self
    }

    /// Most messages of one request; default 64.
    pub fn batch(mut self, messages: usize) -> Self {
        self.options.batch = messages.max(1);
        self
    }

    /// Time after which a stream whose oldest message is not answered is given up; default 60 s.
    pub fn ack_timeout(mut self, timeout: Duration) -> Self {
        self.options.ack_timeout = timeout;
        self
    }

    /// Begins to deliver, on the running tokio runtime.
    pub fn start(self) -> Delivery<M> {
        let shared = Arc::new(Shared {
            connection: self.connection,
            store: self.store,
            options: self.options,
            wake: Notify::new(),
            settled: Notify::new(),
            events: broadcast::channel(1024).0,
            delivered: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            state: Mutex::default(),
        });
        let task = tokio::spawn(sender::run::<M>(Arc::clone(&shared)));
        Delivery { shared, _task: AbortOnDrop(task), message: PhantomData }
    }
}

struct Shared {
    connection: Connection,
    store: Arc<dyn Store>,
    options: Options,
    wake: Notify,
    settled: Notify,
    events: broadcast::Sender<Event>,
    delivered: AtomicU64,
    rejected: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    opened: Arc<std::sync::atomic::AtomicBool>,
    last_error: String,
}

impl Shared {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Delivers messages of one kind to one component, until it is dropped; see [the module](self).
pub struct Delivery<M> {
    shared: Arc<Shared>,
    _task: AbortOnDrop,
    message: PhantomData<M>,
}

impl<M: RingMessage> Delivery<M> {
    /// Options of a delivery over a connection to the component that takes such messages.
    pub fn builder(connection: &Connection) -> Builder<M> {
        Builder {
            connection: connection.clone(),
            store: Arc::new(MemoryStore::default()),
            options: Options { window: 256, batch: 64, ack_timeout: Duration::from_secs(60) },
            message: PhantomData,
        }
    }

    /// Takes a message; it is in the store when this returns.
    ///
    /// # Errors
    /// It has no id, or the store can't be written.
    pub fn put(&self, message: &M) -> io::Result<()> {
        if message.id().is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message has no id"));
        }
        self.shared.store.put(message.id(), message.encode_to_vec().into())?;
        self.shared.wake.notify_one();
        Ok(())
    }

    /// There may be something new in the store, which somebody else has written.
    pub fn wake(&self) {
        self.shared.wake.notify_one();
    }

    /// What happens from now on. A reader that falls behind by 1024 events loses the oldest.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.shared.events.subscribe()
    }

    /// Figures.
    pub fn stats(&self) -> Stats {
        let (pending, pending_bytes) = self.shared.store.pending().unwrap_or_default();
        let state = self.shared.state();
        Stats {
            pending,
            pending_bytes,
            delivered: self.shared.delivered.load(Ordering::Relaxed),
            rejected: self.shared.rejected.load(Ordering::Relaxed),
            connected: state.opened.load(Ordering::Relaxed),
            last_error: state.last_error.clone(),
        }
    }

    /// Waits until nothing is left to be acknowledged.
    pub async fn flushed(&self) {
        loop {
            let changed = self.shared.settled.notified();
            if self.shared.store.pending().is_ok_and(|(count, _)| count == 0) {
                return;
            }
            changed.await;
        }
    }
}
