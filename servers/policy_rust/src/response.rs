//! A response that is being made: the API's chunks become events, and the whole a recorded turn.
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use openclaw_rl_client::{
    Result,
    v1::{
        ChatMessage, FinishReason, SessionActive, SessionEnd, SessionSource, ToolCall, Turn,
        policy_event::Event as Recorded,
    },
};
use serde_json::Value;

use crate::{
    chat, clock, sessions,
    turns::{Call, Desk, Entry, Head},
    upstream::Pieces,
    versions::Active,
};

/// So often a session is told to be active while a response of it is being made.
const PRESENCE: Duration = Duration::from_secs(60);

/// A piece of a response.
pub enum Event {
    Start { version: i64 },
    Delta { text: String, reasoning: String, calls: Vec<ToolCall>, logprobs: Option<Value> },
    End { reason: FinishReason, message: ChatMessage, prompt_tokens: i32, completion_tokens: i32 },
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
    /// It begins when it is read.
    pub fn new(desk: Arc<Desk>, head: Head, call: Call, choice: i32, active: Arc<Active>) -> Self {
        desk.running.fetch_add(1, Ordering::Relaxed);
        let (telling, session_id, silent) = (Arc::clone(&desk), head.session_id.clone(), head.options.no_record);
        let presence = tokio::spawn(async move {
            if silent {
                return;
            }
            loop {
                tokio::time::sleep(PRESENCE).await;
                let (event_id, active_at) = (clock::new_id("active"), Some(clock::now()));
                let event = SessionActive { event_id: event_id.clone(), session_id: session_id.clone(), active_at };
                let event = Recorded::SessionActive(event);
                telling.record(Entry::new(&event_id, &session_id, event, "events_recorded"));
            }
        });
        Self {
            desk,
            head,
            call,
            choice,
            active,
            pieces: None,
            queue: VecDeque::new(),
            said: Said::default(),
            done: false,
            settled: false,
            presence: presence.abort_handle(),
        }
    }

    /// The next piece: one start, deltas, one end. The turn is recorded before its end is given.
    pub async fn next(&mut self) -> Option<Result<Event>> {
        while self.queue.is_empty() {
            if self.done {
                return None;
            }
            if let Err(error) = self.advance().await {
                self.done = true;
                self.desk.count("failed");
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
            self.queue.push_back(Event::Start { version: self.active.version });
        }
    }

    fn take(&mut self, chunk: &Value) {
        let tokens = |name: &str| chunk["usage"][name].as_i64().and_then(|count| i32::try_from(count).ok());
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
        let logprobs = choice["logprobs"]["content"].as_array().filter(|tokens| !tokens.is_empty());
        let logprobs = logprobs.map(|tokens| Value::from(tokens.clone()));
        if !content.is_empty() || !reasoning.is_empty() || logprobs.is_some() {
            self.said.text += &content;
            self.said.reasoning += &reasoning;
            self.queue.push_back(Event::Delta { text: content, reasoning, calls: Vec::new(), logprobs });
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
            self.queue.push_back(Event::Delta { text: String::new(), reasoning: String::new(), calls, logprobs: None });
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
                let end = Recorded::SessionEnd(SessionEnd { event_id, session_id, ended_at: Some(clock::now()) });
                desk.record(Entry::new(&id, &head.session_id, end, "events_recorded"));
            }
            return;
        }
        if desk.forgot(&head.session_id, head.requested_at) {
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
            mesh_id: desk.mesh.clone(),
            ..Default::default()
        };
        let entry = Entry::new(&turn_id, &head.session_id, Recorded::Turn(turn), "turns_recorded");
        desk.record(Entry { conversation, ..entry });
    }
}

impl Drop for Response {
    fn drop(&mut self) {
        self.settle(FinishReason::Cancelled);
        self.presence.abort();
        self.desk.running.fetch_sub(1, Ordering::Relaxed);
    }
}
