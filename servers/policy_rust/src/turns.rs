//! From a request to a recorded turn, whichever door it came through.
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use openclaw_rl_client::{
    Code, Error, Result,
    delivery::Delivery,
    v1::{
        ChatMessage, Feedback, PolicyEvent, SamplingParams, SessionSource, ToolDefinition, TraceContext, TurnOptions,
        policy_event::Event as Recorded,
    },
};
use prost::Message as _;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::{chat, clock, response::Response, sessions, store::Store, upstream::Upstream, versions::Versions};

/// Bytes of events that wait in memory while the disk can't be written.
const HELD: usize = 64 << 20;

/// What is asked for.
#[derive(Clone, Default)]
pub struct Call {
    pub messages: Vec<ChatMessage>,
    pub tools: Vec<ToolDefinition>,
    pub tool_choice: String,
    pub parallel_tool_calls: bool,
    pub sampling: SamplingParams,
    pub logprobs: bool,
    pub deadline: Option<Instant>,
    /// The request's other fields, for the API.
    pub extra: Map<String, Value>,
}

/// Who asks for a turn, and where it belongs. All choices of a request share it.
#[derive(Clone)]
pub struct Head {
    pub turn_id: String,
    pub session_id: String,
    pub source: SessionSource,
    pub options: TurnOptions,
    pub client: String,
    pub api: &'static str,
    pub metadata: HashMap<String, String>,
    pub trace: Option<TraceContext>,
    pub requested_at: f64,
    pub choices_open: Arc<AtomicUsize>,
}

/// What a door says of a request beside what is asked for.
pub struct Origin {
    pub client: String,
    pub api: &'static str,
    pub metadata: HashMap<String, String>,
    pub trace: Option<TraceContext>,
}

/// An event for the outbox.
pub struct Entry {
    pub id: String,
    /// The session that it is of, or the turn where only that is known: it is forgotten with it.
    pub of: String,
    pub payload: Bytes,
    /// What the conversation is known by that it leaves behind.
    pub conversation: Option<Vec<u8>>,
    pub counter: &'static str,
}

impl Entry {
    pub fn new(id: &str, of: &str, event: Recorded, counter: &'static str) -> Self {
        let payload = PolicyEvent { event: Some(event) }.encode_to_vec().into();
        Self { id: id.into(), of: of.into(), payload, conversation: None, counter }
    }
}

/// The desk behind all doors.
pub struct Desk {
    pub upstream: Upstream,
    pub versions: Arc<Versions>,
    pub running: AtomicUsize,
    pub closed: AtomicBool,
    /// Id of the mesh; empty for none.
    pub mesh: String,
    store: Arc<Store>,
    delivery: Delivery<PolicyEvent>,
    held: Mutex<VecDeque<Entry>>,
}

impl Desk {
    pub fn new(
        upstream: Upstream,
        versions: Arc<Versions>,
        store: Arc<Store>,
        delivery: Delivery<PolicyEvent>,
        mesh: String,
    ) -> Self {
        Self {
            upstream,
            versions,
            running: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            mesh,
            store,
            delivery,
            held: Mutex::default(),
        }
    }

    pub fn delivery(&self) -> &Delivery<PolicyEvent> {
        &self.delivery
    }

    /// Finds the session of a request and gives it ids; `choices` responses will be made.
    pub fn open(
        &self,
        mut options: TurnOptions,
        origin: Origin,
        messages: &[ChatMessage],
        choices: usize,
    ) -> Result<Head> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::unavailable("the policy server is about to stop", Duration::from_secs(2)));
        }
        chat::check_label("session_id", &options.session_id)?;
        chat::check_label("turn_type", &options.turn_type)?;
        let mut source = SessionSource::Client;
        let mut session_id = std::mem::take(&mut options.session_id);
        if session_id.is_empty() {
            let known = sessions::candidates(&origin.client, messages);
            let known = known.iter().find_map(|key| self.store.conversation(key));
            source = if known.is_some() { SessionSource::Inferred } else { SessionSource::New };
            session_id = known.unwrap_or_else(|| clock::new_id("ses"));
        }
        self.store.count("requests");
        Ok(Head {
            turn_id: clock::new_id("turn"),
            session_id,
            source,
            options,
            client: origin.client,
            api: origin.api,
            metadata: origin.metadata,
            trace: origin.trace,
            requested_at: clock::seconds(),
            choices_open: Arc::new(AtomicUsize::new(choices)),
        })
    }

    /// A response to it, which begins when it is read. Dropping it cancels it; it is recorded as far as it came.
    pub fn respond(self: &Arc<Self>, head: &Head, call: Call, choice: i32) -> Result<Response> {
        chat::check_sampling(&call.sampling)?;
        let active = self.versions.active();
        chat::check_version(&head.options, active.version)?;
        Ok(Response::new(Arc::clone(self), head.clone(), call, choice, active))
    }

    /// Takes what somebody thinks of a turn or session; gives its id.
    pub fn feedback(&self, mut feedback: Feedback) -> Result<String> {
        let missing = "is missing: name a turn_id or a session_id";
        if feedback.turn_id.is_empty() && feedback.session_id.is_empty() {
            return Err(Error::invalid("turn_id", missing));
        }
        if feedback.score.is_none() && feedback.comment.is_empty() {
            return Err(Error::invalid("score", "is missing: give a score, thumbs or a comment"));
        }
        if let Some(score) = feedback.score.filter(|score| !(-1.0..=1.0).contains(score)) {
            return Err(Error::invalid("score", format!("{score} is not allowed: must be from -1 to 1")));
        }
        for (name, id) in [
            ("turn_id", &feedback.turn_id),
            ("session_id", &feedback.session_id),
            ("feedback_id", &feedback.feedback_id),
        ] {
            chat::check_label(name, id)?;
        }
        if feedback.feedback_id.is_empty() {
            feedback.feedback_id = clock::new_id("fb");
        }
        feedback.given_at.get_or_insert_with(clock::now);
        let id = feedback.feedback_id.clone();
        let of = if feedback.session_id.is_empty() { &feedback.turn_id } else { &feedback.session_id }.clone();
        self.write(&Entry::new(&id, &of, Recorded::Feedback(feedback), "feedback_recorded")).map_err(|error| {
            Error::unavailable(format!("it can't be written down: {error}"), Duration::from_secs(1))
        })?;
        Ok(id)
    }

    /// Whether a session was forgotten after it was asked for (seconds since 1970).
    pub fn forgot(&self, session: &str, requested_at: f64) -> bool {
        self.store.forgot(session, requested_at)
    }

    pub fn count(&self, counter: &str) {
        self.store.count(counter);
    }

    pub fn counters(&self) -> BTreeMap<String, i64> {
        self.store.counters().unwrap_or_default()
    }

    /// Events that wait in memory since the disk can't be written.
    pub fn held(&self) -> usize {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Records what happened. A full disk stops no answer: the event waits in memory then.
    pub fn record(&self, entry: Entry) {
        self.retry();
        let waiting = self.held() > 0;
        if !waiting && self.write(&entry).is_ok() {
            return;
        }
        log!("event {} can't be written and waits in memory", entry.id);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.push_back(entry);
        while held.iter().map(|entry| entry.payload.len()).sum::<usize>() > HELD {
            let lost = held.pop_front().map(|entry| entry.id).unwrap_or_default();
            log!("event {lost} is lost: it can't be written, and no more than {HELD} bytes wait in memory");
        }
    }

    /// Writes what waits in memory, in its order, as far as it can be.
    pub fn retry(&self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(entry) = held.front() {
            if self.write(entry).is_err() {
                return;
            }
            held.pop_front();
        }
    }

    fn write(&self, entry: &Entry) -> io::Result<()> {
        self.store.record(entry)?;
        self.delivery.wake();
        Ok(())
    }
}

/// The error of a deadline that has passed.
pub fn too_late() -> Error {
    Error::new(Code::DeadlineExceeded, "DEADLINE_EXCEEDED", "the deadline has passed")
}
