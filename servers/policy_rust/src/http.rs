//! The HTTP door: OpenAI's API as its SDKs know it, and what agents say beside it.
use std::{convert::Infallible, net::SocketAddr, sync::Arc};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{ConnectInfo, State},
    http::{HeaderMap, Method, StatusCode, Uri},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use futures_util::{Stream, StreamExt as _, stream};
use openclaw_rl_client::v1::{ChatMessage, FinishReason, TraceContext};
use serde_json::{Value, json};

use crate::{
    chat::call_json,
    clock,
    fields::{self, ApiError, Object, Read},
    openai::{self, ChatRequest},
    response::{Event, Response as Making},
    sessions,
    turns::{Desk, Head, Origin},
    web_pages,
};

pub fn router(desk: Arc<Desk>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/feedback", post(feedback))
        .route("/v1/models", get(models))
        .route("/v1/models/{model}", get(models))
        .route("/healthz", get(health))
        .fallback(unknown)
        .method_not_allowed_fallback(not_allowed)
        .with_state(desk)
        .layer(axum::middleware::from_fn(web_pages::check))
}

async fn unknown(method: Method, uri: Uri) -> ApiError {
    ApiError::plain(404, format!("Unknown request URL: {method} {}.", uri.path()), "unknown_url")
}

async fn not_allowed(method: Method, uri: Uri) -> ApiError {
    ApiError::plain(405, format!("Not allowed to {method} on {}.", uri.path()), "method_not_allowed")
}

async fn health(State(desk): State<Arc<Desk>>) -> Response {
    if desk.closed.load(std::sync::atomic::Ordering::Relaxed) {
        let body = Json(json!({"ok": false, "detail": "the policy server is about to stop"}));
        return (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "2")], body).into_response();
    }
    Json(json!({"ok": true})).into_response()
}

async fn models(State(desk): State<Arc<Desk>>, uri: Uri) -> Read<Json<Value>> {
    let model = json!({
        "id": desk.upstream.model, "object": "model", "created": clock::seconds() as u64, "owned_by": "openclaw-rl",
        "policy_version": desk.versions.active().version,
    });
    match uri.path().strip_prefix("/v1/models/") {
        None => Ok(Json(json!({"object": "list", "data": [model]}))),
        Some(name) if name == desk.upstream.model => Ok(Json(model)),
        Some(name) => Err(no_model(name, &desk.upstream.model)),
    }
}

fn no_model(name: &str, there: &str) -> ApiError {
    let text = format!("The model '{name}' does not exist; there is '{there}'.");
    ApiError { status: 404, ..fields::bad("model", text, "model_not_found") }
}

fn client(headers: &HeaderMap, address: SocketAddr, user: &str) -> String {
    let key = headers.get("authorization").and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    sessions::client(key.unwrap_or_default(), &address.ip().to_string(), user)
}

async fn feedback(
    State(desk): State<Arc<Desk>>,
    ConnectInfo(address): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    Object(body): Object,
) -> Read<Json<Value>> {
    let mut feedback = openai::feedback(&body)?;
    feedback.client = client(&headers, address, "");
    let id = desk.feedback(feedback)?;
    Ok(Json(json!({"object": "feedback", "feedback_id": id})))
}

async fn chat(
    State(desk): State<Arc<Desk>>,
    ConnectInfo(address): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    Object(body): Object,
) -> Read<Response> {
    let asked = openai::chat_request(&body, &headers)?;
    // "default" is whatever there is, for clients that must name a model.
    if let Some(name) = asked.model.as_deref().filter(|name| *name != desk.upstream.model && *name != "default") {
        return Err(no_model(name, &desk.upstream.model));
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let trace = text("traceparent")
        .map(|traceparent| TraceContext { traceparent, tracestate: text("tracestate").unwrap_or_default() });
    let origin = Origin {
        client: client(&headers, address, &asked.user),
        api: "chat.completions",
        metadata: asked.metadata.clone(),
        trace,
    };
    let head = desk.open(asked.options.clone(), origin, &asked.call.messages, asked.n)?;
    let made = (0..asked.n as i32).map(|choice| {
        let mut call = asked.call.clone();
        call.sampling.seed = call.sampling.seed.map(|seed| seed.wrapping_add(choice.into()));
        let making = desk.respond(&head, call, choice)?;
        let events = stream::unfold(making, async |mut making: Making| Some((making.next().await?, making)));
        Ok(events.map(move |event| (choice, event)).boxed())
    });
    let mut events = stream::select_all(made.collect::<openclaw_rl_client::Result<Vec<_>>>()?);
    // Until the first piece is there, a failure has a status of its own.
    let Some((choice, first)) = events.next().await else {
        return Err(openclaw_rl_client::Error::unavailable("the API gave no answer", Default::default()).into());
    };
    let Event::Start { version } = first? else {
        return Err(openclaw_rl_client::Error::unavailable("the answer has no start", Default::default()).into());
    };
    let reply = Reply {
        head: json!({
            "id": format!("chatcmpl-{}", head.turn_id), "created": clock::seconds() as u64,
            "model": desk.upstream.model, "session_id": head.session_id,
        }),
        asked,
    };
    let first = (choice, Ok(Event::Start { version }));
    let events = stream::iter([first]).chain(events);
    let mut response = if reply.asked.stream {
        let headers = [
            ("content-type", "text/event-stream; charset=utf-8"),
            ("cache-control", "no-cache"),
            ("x-accel-buffering", "no"),
        ];
        (headers, Body::from_stream(streamed(reply, events))).into_response()
    } else {
        Json(whole(reply, events).await?).into_response()
    };
    set_headers(&mut response, &head, version);
    Ok(response)
}

fn set_headers(response: &mut Response, head: &Head, version: i64) {
    let headers = response.headers_mut();
    for name in ["x-openclaw-turn-id", "x-request-id"] {
        if let Ok(value) = head.turn_id.parse() {
            headers.insert(name, value);
        }
    }
    headers.insert("x-openclaw-policy-version", version.into());
}

/// What the answers of one request have alike.
struct Reply {
    head: Value,
    asked: ChatRequest,
}

impl Reply {
    fn body(&self, kind: &str, choices: Vec<Value>, usage: Option<Value>) -> Value {
        let mut body = self.head.clone();
        body["object"] = kind.into();
        body["choices"] = choices.into();
        if let Some(usage) = usage {
            body["usage"] = usage;
        }
        body
    }

    fn chunk(&self, choice: i32, delta: Value, logprobs: Option<Value>, reason: Option<&str>) -> Bytes {
        let logprobs = logprobs.map(|content| json!({"content": content, "refusal": null}));
        let choice = json!({"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": reason});
        data(&self.body("chat.completion.chunk", vec![choice], self.asked.include_usage.then_some(Value::Null)))
    }
}

fn data(body: &Value) -> Bytes {
    format!("data: {body}\n\n").into()
}

fn usage(prompt: i32, completion: i32) -> Value {
    json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion})
}

type Events = (i32, openclaw_rl_client::Result<Event>);

/// Server-sent events. When the client goes away the stream is dropped, and the responses with it.
fn streamed(reply: Reply, events: impl Stream<Item = Events>) -> impl Stream<Item = Result<Bytes, Infallible>> {
    let (mut completion, mut left, mut failed) = (0, reply.asked.n, false);
    let mut calls = vec![0; reply.asked.n];
    events.map(move |(choice, event)| {
        let piece = match event {
            _ if failed => return Ok(Bytes::new()),
            Err(error) => {
                failed = true;
                return Ok(data(&ApiError::from(error).body()));
            }
            Ok(Event::Start { .. }) => reply.chunk(choice, json!({"role": "assistant", "content": ""}), None, None),
            Ok(Event::Delta { text, reasoning, calls: new, logprobs }) => {
                let mut delta = json!({});
                if !text.is_empty() {
                    delta["content"] = text.into();
                }
                if !reasoning.is_empty() {
                    delta["reasoning_content"] = reasoning.into();
                }
                if !new.is_empty() {
                    let before = calls[choice as usize];
                    calls[choice as usize] += new.len();
                    let shown = new.iter().enumerate().map(|(i, call)| {
                        let mut shown = call_json(call);
                        shown["index"] = (before + i).into();
                        shown
                    });
                    delta["tool_calls"] = shown.collect::<Vec<_>>().into();
                }
                reply.chunk(choice, delta, logprobs.filter(|_| reply.asked.call.logprobs), None)
            }
            Ok(Event::End { reason, prompt_tokens, completion_tokens, .. }) => {
                completion += completion_tokens;
                left -= 1;
                let mut piece = reply.chunk(choice, json!({}), None, Some(openai::reason(reason))).to_vec();
                if left == 0 && reply.asked.include_usage {
                    let body = reply.body("chat.completion.chunk", Vec::new(), Some(usage(prompt_tokens, completion)));
                    piece.extend(data(&body));
                }
                if left == 0 {
                    piece.extend(b"data: [DONE]\n\n");
                }
                piece.into()
            }
        };
        Ok(piece)
    })
}

async fn whole(reply: Reply, mut events: impl Stream<Item = Events> + Unpin) -> Read<Value> {
    let mut ends: Vec<Option<(FinishReason, ChatMessage)>> = vec![None; reply.asked.n];
    let mut tokens = vec![Vec::new(); reply.asked.n];
    let (mut prompt, mut completion) = (0, 0);
    while let Some((choice, event)) = events.next().await {
        match event? {
            Event::Start { .. } => {}
            Event::Delta { logprobs, .. } => {
                tokens[choice as usize].extend(logprobs.iter().filter_map(Value::as_array).flatten().cloned());
            }
            Event::End { reason, message, prompt_tokens, completion_tokens } => {
                prompt = prompt_tokens;
                completion += completion_tokens;
                ends[choice as usize] = Some((reason, message));
            }
        }
    }
    let choices = ends.into_iter().zip(tokens).enumerate().map(|(index, (end, tokens))| {
        let (reason, message) = end.unwrap_or_default();
        let mut shown = json!({"role": "assistant", "content": message.content, "refusal": null});
        if !message.reasoning_content.is_empty() {
            shown["reasoning_content"] = message.reasoning_content.into();
        }
        if !message.tool_calls.is_empty() {
            shown["tool_calls"] = message.tool_calls.iter().map(call_json).collect::<Vec<_>>().into();
            if message.content.is_empty() {
                shown["content"] = Value::Null;
            }
        }
        let logprobs = reply.asked.call.logprobs.then(|| json!({"content": tokens, "refusal": null}));
        json!({"index": index, "message": shown, "finish_reason": openai::reason(reason), "logprobs": logprobs})
    });
    Ok(reply.body("chat.completion", choices.collect(), Some(usage(prompt, completion))))
}
