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
        ChatMessage, Feedback, FinishReason, PolicyEvent, SamplingParams, SessionActive, SessionEnd, SessionSource,
        ToolCall, ToolDefinition, TraceContext, Turn, TurnOptions, policy_event::Event as Recorded,
    },
};
use prost::Message as _;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::{
    chat, clock, sessions,
    store::Store,
    upstream::{Pieces, Upstream},
    versions::{Active, Versions},
};

/// So often a session is told to be active while a response of it is being made.
const PRESENCE: Duration = Duration::from_secs(60);
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
    source: SessionSource,
    options: TurnOptions,
    client: String,
    api: &'static str,
    metadata: HashMap<String, String>,
    trace: Option<TraceContext>,
    requested_at: f64,
    choices_open: Arc<AtomicUsize>,
}

/// What a door says of a request beside what is asked for.
pub struct Origin {
    pub client: String,
    pub api: &'static str,
    pub metadata: HashMap<String, String>,
    pub trace: Option<TraceContext>,
}

/// A piece of a response.
pub enum Event {
    Start {
        version: i64,
    },
    Delta {
        text: String,
        reasoning: String,
        calls: Vec<ToolCall>,
        logprobs: Option<Value>,
    },
    End {
        reason: FinishReason,
        message: ChatMessage,
        prompt_tokens: i32,
        completion_tokens: i32,
    },
}

/// The desk behind all doors.
pub struct Desk {
    pub upstream: Upstream,
    pub versions: Arc<Versions>,
    pub running: AtomicUsize,
    pub closed: AtomicBool,
    store: Arc<Store>,
    delivery: Delivery<PolicyEvent>,
    held: Mutex<VecDeque<(String, String, Bytes)>>,
}

impl Desk {
    pub fn new(
        upstream: Upstream,
        versions: Arc<Versions>,
        store: Arc<Store>,
        delivery: Delivery<PolicyEvent>,
    ) -> Self {
        Self {
            upstream,
            versions,
            running: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
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
            return Err(Error::unavailable(
                "the policy server is about to stop",
                Duration::from_secs(2),
            ));
        }
        chat::check_label("session_id", &options.session_id)?;
        chat::check_label("turn_type", &options.turn_type)?;
        let mut source = SessionSource::Client;
        let mut session_id = std::mem::take(&mut options.session_id);
        if session_id.is_empty() {
            let known = sessions::candidates(&origin.client, messages);
            let known = known.iter().find_map(|key| self.store.conversation(key));
            source = if known.is_some() {
                SessionSource::Inferred
            } else {
                SessionSource::New
            };
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
        self.running.fetch_add(1, Ordering::Relaxed);
        let (desk, session_id) = (Arc::clone(self), head.session_id.clone());
        let silent = head.options.no_record;
        let presence = tokio::spawn(async move {
            while !silent {
                tokio::time::sleep(PRESENCE).await;
                let event_id = clock::new_id("active");
                let (id, active_at) = (event_id.clone(), Some(clock::now()));
                let session = session_id.clone();
                let event = SessionActive {
                    event_id,
                    session_id: session.clone(),
                    active_at,
                };
                desk.record(&id, &session, Recorded::SessionActive(event), None, "events_recorded");
            }
        });
        Ok(Response {
            desk: Arc::clone(self),
            head: head.clone(),
            call,
            choice,
            active,
            pieces: None,
            queue: VecDeque::new(),
            said: Said::default(),
            done: false,
            settled: false,
            presence: presence.abort_handle(),
        })
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
            return Err(Error::invalid(
                "score",
                format!("{score} is not allowed: must be from -1 to 1"),
            ));
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
        let (id, session) = (feedback.feedback_id.clone(), feedback.session_id.clone());
        self.write(
            &id,
            &session,
            &encoded(Recorded::Feedback(feedback)),
            None,
            "feedback_recorded",
        )
        .map_err(|error| Error::unavailable(format!("it can't be written down: {error}"), Duration::from_secs(1)))?;
        Ok(id)
    }

    /// Counts, and events that wait in memory since the disk can't be written.
    pub fn counters(&self) -> BTreeMap<String, i64> {
        self.store.counters().unwrap_or_default()
    }

    pub fn held(&self) -> usize {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Records what happened. A full disk stops no answer: the event waits in memory then.
    fn record(&self, id: &str, session: &str, event: Recorded, conversation: Option<&[u8]>, counter: &str) {
        let payload = encoded(event);
        self.retry();
        let waiting = self.held() > 0;
        if !waiting && self.write(id, session, &payload, conversation, counter).is_ok() {
            return;
        }
        eprintln!("event {id} can't be written and waits in memory");
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.push_back((id.into(), session.into(), payload));
        while held.iter().map(|(_, _, payload)| payload.len()).sum::<usize>() > HELD {
            held.pop_front();
        }
    }

    /// Writes what waits in memory, in its order, as far as it can be.
    pub fn retry(&self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((id, session, payload)) = held.front() {
            if self.write(id, session, payload, None, "turns_recorded").is_err() {
                return;
            }
            held.pop_front();
        }
    }

    fn write(&self, id: &str, session: &str, payload: &[u8], known: Option<&[u8]>, counter: &str) -> io::Result<()> {
        self.store.record(id, session, payload, known, counter)?;
        self.delivery.wake();
        Ok(())
    }
}

fn encoded(event: Recorded) -> Bytes {
    PolicyEvent { event: Some(event) }.encode_to_vec().into()
}

/// What a response consists of so far.
#[derive(Default)]
struct Said {
    text: String,
    reasoning: String,
    calls: BTreeMap<i64, ToolCall>,
    reason: FinishReason,
    first_at: Option<f64>,
    prompt_tokens: i32,
    completion_tokens: i32,
}

/// A response that is being made.
pub struct Response {
    desk: Arc<Desk>,
    head: Head,
    call: Call,
    choice: i32,
    active: Arc<Active>,
    pieces: Option<Pieces>,
    queue: VecDeque<Event>,
    said: Said,
    done: bool,
    settled: bool,
    presence: tokio::task::AbortHandle,
}

impl Response {
    /// The next piece: one start, deltas, one end. The turn is recorded before its end is given.
    pub async fn next(&mut self) -> Option<Result<Event>> {
        while self.queue.is_empty() {
            if self.done {
                return None;
            }
            if let Err(error) = self.advance().await {
                self.done = true;
                self.desk.store.count("failed");
                self.settle(FinishReason::Error);
                return Some(Err(error));
            }
        }
        self.queue.pop_front().map(Ok)
    }

    async fn advance(&mut self) -> Result<()> {
        let chunk = match &mut self.pieces {
            None => {
                let upstream = &self.desk.upstream;
                let body = chat::request(&upstream.model, &self.call, &self.active.text);
                let (pieces, first) = upstream.ask(&body, self.call.deadline).await?;
                self.pieces = Some(pieces);
                Some(first)
            }
            Some(pieces) => pieces.next().await?,
        };
        match chunk {
            Some(chunk) => self.take(&chunk),
            None => self.finish(),
        }
        Ok(())
    }

    fn begun(&mut self) {
        if self.said.first_at.is_none() {
            self.said.first_at = Some(clock::seconds());
            self.queue.push_back(Event::Start {
                version: self.active.version,
            });
        }
    }

    fn take(&mut self, chunk: &Value) {
        let tokens = |name: &str| {
            chunk["usage"][name]
                .as_i64()
                .and_then(|count| i32::try_from(count).ok())
        };
        self.said.prompt_tokens = tokens("prompt_tokens").unwrap_or(self.said.prompt_tokens);
        self.said.completion_tokens = tokens("completion_tokens").unwrap_or(self.said.completion_tokens);
        let choice = &chunk["choices"][0];
        if !choice.is_object() {
            return;
        }
        self.begun();
        let delta = &choice["delta"];
        let text = |name: &str| delta[name].as_str().unwrap_or_default().to_owned();
        let (content, reasoning) = (text("content"), text("reasoning_content"));
        for piece in delta["tool_calls"].as_array().into_iter().flatten() {
            let whole = self.said.calls.entry(piece["index"].as_i64().unwrap_or(0)).or_default();
            let part = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            if whole.id.is_empty() {
                whole.id = part(&piece["id"]);
            }
            whole.name += &part(&piece["function"]["name"]);
            whole.arguments_json += &part(&piece["function"]["arguments"]);
        }
        match choice["finish_reason"].as_str() {
            Some("length") => self.said.reason = FinishReason::Length,
            Some("tool_calls" | "function_call") => self.said.reason = FinishReason::ToolCalls,
            Some(_) => self.said.reason = FinishReason::Stop,
            None => {}
        }
        let logprobs = choice["logprobs"]["content"]
            .as_array()
            .filter(|tokens| !tokens.is_empty());
        let logprobs = logprobs.map(|tokens| Value::from(tokens.clone()));
        if !content.is_empty() || !reasoning.is_empty() || logprobs.is_some() {
            self.said.text += &content;
            self.said.reasoning += &reasoning;
            self.queue.push_back(Event::Delta {
                text: content,
                reasoning,
                calls: Vec::new(),
                logprobs,
            });
        }
    }

    fn finish(&mut self) {
        self.begun();
        self.done = true;
        if self.said.reason == FinishReason::Unspecified {
            self.said.reason = FinishReason::Stop;
        }
        let message = self.message();
        if !message.tool_calls.is_empty() {
            self.said.reason = FinishReason::ToolCalls;
            let calls = message.tool_calls.clone();
            self.queue.push_back(Event::Delta {
                text: String::new(),
                reasoning: String::new(),
                calls,
                logprobs: None,
            });
        }
        self.settle(self.said.reason);
        self.queue.push_back(Event::End {
            reason: self.said.reason,
            message,
            prompt_tokens: self.said.prompt_tokens,
            completion_tokens: self.said.completion_tokens,
        });
    }

    fn message(&self) -> ChatMessage {
        ChatMessage {
            role: "assistant".into(),
            content: self.said.text.clone(),
            tool_calls: self.said.calls.values().cloned().collect(),
            reasoning_content: self.said.reasoning.clone(),
            ..Default::default()
        }
    }

    /// Records the turn, as far as it came; one that was refused before its first token is none.
    fn settle(&mut self, reason: FinishReason) {
        if std::mem::replace(&mut self.settled, true) {
            return;
        }
        let (head, desk) = (&self.head, &self.desk);
        let last = head.choices_open.fetch_sub(1, Ordering::Relaxed) <= 1;
        let session_done = head.options.session_done && last;
        let refused = reason == FinishReason::Error && self.said.first_at.is_none();
        if refused || head.options.no_record {
            if session_done && head.source == SessionSource::Client {
                let event_id = clock::new_id("end");
                let (id, session_id) = (event_id.clone(), head.session_id.clone());
                let end = SessionEnd {
                    event_id,
                    session_id,
                    ended_at: Some(clock::now()),
                };
                desk.record(
                    &id,
                    &head.session_id,
                    Recorded::SessionEnd(end),
                    None,
                    "events_recorded",
                );
            }
            return;
        }
        if desk.store.forgot(&head.session_id, head.requested_at) {
            return;
        }
        let response = self.message();
        let turn_id = match self.choice {
            0 => head.turn_id.clone(),
            choice => format!("{}-{choice}", head.turn_id),
        };
        let said = !response.content.is_empty() || !response.tool_calls.is_empty();
        let conversation = said.then(|| sessions::key(&head.client, &self.call.messages, &response));
        let turn = Turn {
            turn_id: turn_id.clone(),
            session_id: head.session_id.clone(),
            session_source: head.source.into(),
            declared_type: head.options.turn_type.clone(),
            session_done,
            messages: std::mem::take(&mut self.call.messages),
            tools: std::mem::take(&mut self.call.tools),
            response: Some(response),
            finish_reason: reason.into(),
            sampling: Some(self.call.sampling.clone()),
            model: desk.upstream.model.clone(),
            policy_version: self.active.version,
            requested_at: Some(clock::timestamp(head.requested_at)),
            first_token_at: self.said.first_at.map(clock::timestamp),
            finished_at: Some(clock::now()),
            trace: head.trace.clone(),
            client: head.client.clone(),
            metadata: head.metadata.clone(),
            api: head.api.into(),
            choice_index: self.choice,
            episode: head.options.episode.clone(),
            ..Default::default()
        };
        desk.record(
            &turn_id,
            &head.session_id,
            Recorded::Turn(turn),
            conversation.as_deref(),
            "turns_recorded",
        );
    }
}

impl Drop for Response {
    fn drop(&mut self) {
        self.settle(FinishReason::Cancelled);
        self.presence.abort();
        self.desk.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The error of a deadline that has passed.
pub fn too_late() -> Error {
    Error::new(Code::DeadlineExceeded, "DEADLINE_EXCEEDED", "the deadline has passed")
}
