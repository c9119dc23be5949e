//! The API that answers: OpenAI's chat completions, streamed as server-sent events.
use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request, Response, StatusCode, Uri,
    body::Incoming,
    header::{self, HeaderValue},
};
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use openclaw_rl_client::{Code, Error, Result};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout, timeout_at};

/// What fails before its first piece is tried again for so long.
const RETRY: Duration = Duration::from_secs(60);
/// Longest wait for the next piece.
const SILENCE: Duration = Duration::from_secs(600);
/// Bytes of an error's body, or of one event, that are read.
const MOST: usize = 16 << 20;

/// The API's key, and how it is shown to the API.
#[derive(Clone)]
struct Key {
    text: String,
    header: HeaderValue,
}

impl Key {
    fn new(text: String) -> std::result::Result<Self, String> {
        let header = HeaderValue::from_str(&format!("Bearer {text}"))
            .map_err(|_| "the key in OPENAI_API_KEY has characters that no header may have")?;
        Ok(Self { text, header })
    }
}

/// What the API said, without the key.
fn hide(key: &Option<Key>, said: &str) -> String {
    match key {
        Some(key) => said.replace(&key.text, "***"),
        None => said.to_owned(),
    }
}

pub struct Upstream {
    pub model: String,
    url: Uri,
    key: Option<Key>,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    problem: Mutex<String>,
    retries: AtomicU64,
}

impl Upstream {
    /// Args: `base`: address up to `/v1`; `key`: what OPENAI_API_KEY says.
    pub fn new(base: &str, model: &str, key: Option<String>) -> std::result::Result<Self, String> {
        let url: Uri = format!("{}/chat/completions", base.trim_end_matches('/'))
            .parse()
            .map_err(|error| format!("{base:?} is no address: {error}"))?;
        if !matches!(url.scheme_str(), Some("http" | "https")) {
            return Err(format!("{base:?} is not allowed: must begin with http:// or https://"));
        }
        let key = key.map(|key| key.trim().to_owned()).filter(|key| !key.is_empty()).map(Key::new).transpose()?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(Duration::from_secs(10)));
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_provider_and_webpki_roots(rustls::crypto::ring::default_provider())
            .map_err(|error| error.to_string())?
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        Ok(Self {
            model: model.into(),
            url,
            key,
            client: Client::builder(TokioExecutor::new()).build(connector),
            problem: Mutex::default(),
            retries: AtomicU64::new(0),
        })
    }

    /// Why the API does not work, for an operator; empty while it does, as far as is known.
    pub fn problem(&self) -> String {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Requests that were tried again.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    fn set_problem(&self, text: String) {
        *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    /// Asks, and waits for the first piece; the client has seen nothing of what fails before it.
    pub async fn ask(&self, body: &Value, deadline: Option<Instant>) -> Result<(Pieces, Value)> {
        let body = Bytes::from(body.to_string());
        let end = Instant::now() + RETRY;
        let end = deadline.map_or(end, |deadline| deadline.min(end));
        let mut pause = Duration::from_millis(500);
        loop {
            let error = match self.begin(&body).await {
                Ok(begun) => {
                    self.set_problem(String::new());
                    return Ok(begun);
                }
                Err(error) => error,
            };
            let wait = error.retry_after().unwrap_or_default().max(pause);
            if !error.retryable() || Instant::now() + wait > end {
                return Err(error);
            }
            self.retries.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(wait).await;
            pause = (pause * 2).min(Duration::from_secs(10));
        }
    }

    async fn begin(&self, body: &Bytes) -> Result<(Pieces, Value)> {
        let mut request = Request::post(&self.url)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "text/event-stream")
            .header(header::USER_AGENT, concat!("openclaw-rl-policy/", env!("CARGO_PKG_VERSION")));
        if let Some(key) = &self.key {
            request = request.header(header::AUTHORIZATION, &key.header);
        }
        let request = request.body(Full::new(body.clone())).map_err(|error| failed(&error.to_string()))?;
        let response = timeout(SILENCE, self.client.request(request))
            .await
            .map_err(|_| failed("it does not answer"))?
            .map_err(|error| failed(&format!("it can't be reached: {}", chain(&error))))?;
        if !response.status().is_success() {
            return Err(self.refused(response).await);
        }
        let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        if kind.is_some_and(|kind| kind.starts_with("application/json")) {
            return whole(response, self.key.clone()).await;
        }
        let mut pieces = Pieces::of(Some(response.into_body()), self.key.clone());
        match pieces.next().await? {
            Some(first) => Ok((pieces, first)),
            None => Err(failed("it ended its answer before it began")),
        }
    }

    /// What our client gets: the API's own status where the fault is the client's, else that the API is at fault.
    async fn refused(&self, response: Response<Incoming>) -> Error {
        let (head, body) = response.into_parts();
        let retry_after = head.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let retry_after = Duration::from_secs_f64(retry_after.unwrap_or(1.0_f64).clamp(0.0, 3600.0));
        let body = http_body_util::Limited::new(body, MOST).collect().await.map(|body| body.to_bytes());
        let body: Value = serde_json::from_slice(&body.unwrap_or_default()).unwrap_or_default();
        let said = body["error"]["message"].as_str().or(body["message"].as_str()).unwrap_or_default();
        let text = format!("the API answered {}: {}", head.status.as_u16(), hide(&self.key, said));
        match head.status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let text = format!("{text}; set a valid OPENAI_API_KEY and start the policy server anew");
                log!("{text}");
                self.set_problem(text);
                Error::new(
                    Code::Internal,
                    "INTERNAL",
                    "the API refuses the key of the policy server; its operator must set a valid one",
                )
                .with_metadata("http_status", "502")
            }
            StatusCode::TOO_MANY_REQUESTS => {
                Error::new(Code::ResourceExhausted, "RESOURCE_EXHAUSTED", text).with_retry_after(retry_after)
            }
            status if status.is_client_error() => {
                let error = match body["error"]["param"].as_str() {
                    Some(field) => Error::invalid(field, text),
                    None => Error::new(Code::InvalidArgument, "INVALID_ARGUMENT", text),
                };
                error.with_metadata("http_status", status.as_u16().to_string())
            }
            _ => Error::unavailable(text, retry_after),
        }
    }
}

/// An answer as it comes. Dropping it ends the request.
pub struct Pieces {
    body: Option<Incoming>,
    buffer: Vec<u8>,
    /// So many bytes of the buffer have no end of a line.
    searched: usize,
    /// The API has said why it stopped, or that this was all.
    complete: bool,
    key: Option<Key>,
}

impl Pieces {
    fn of(body: Option<Incoming>, key: Option<Key>) -> Self {
        Self { complete: body.is_none(), body, buffer: Vec::new(), searched: 0, key }
    }

    /// The next chunk; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Value>> {
        let silence = Instant::now() + SILENCE;
        loop {
            while let Some(end) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=self.searched + end).collect();
                self.searched = 0;
                let Some(data) = line.strip_prefix(b"data:") else {
                    continue;
                };
                let data = data.trim_ascii();
                if data == b"[DONE]" {
                    (self.body, self.complete) = (None, true);
                    return Ok(None);
                }
                let chunk: Value = serde_json::from_slice(data)
                    .map_err(|error| failed(&format!("it sent an event that is no JSON: {error}")))?;
                if let Some(error) = chunk.get("error").filter(|error| !error.is_null()) {
                    return Err(failed(&hide(
                        &self.key,
                        error["message"].as_str().unwrap_or("it broke its answer off"),
                    )));
                }
                self.complete |= chunk["choices"][0]["finish_reason"].is_string();
                return Ok(Some(chunk));
            }
            self.searched = self.buffer.len();
            let Some(body) = &mut self.body else {
                // An API that dies looks like one that has said all where its answer has no length.
                return if self.complete { Ok(None) } else { Err(failed("it broke its answer off")) };
            };
            if self.buffer.len() > MOST {
                return Err(failed("it sent an event without an end"));
            }
            match timeout_at(silence, body.frame())
                .await
                .map_err(|_| failed("it stopped in the middle of an answer"))?
            {
                Some(Ok(frame)) => self.buffer.extend_from_slice(frame.data_ref().map_or(&[], |data| data)),
                Some(Err(error)) => return Err(failed(&chain(&error))),
                None => {
                    self.body = None;
                    self.buffer.push(b'\n'); // the last line may have no end
                }
            }
        }
    }
}

/// An answer of an API that does not stream, as one chunk.
async fn whole(response: Response<Incoming>, key: Option<Key>) -> Result<(Pieces, Value)> {
    let body = http_body_util::Limited::new(response.into_body(), MOST).collect();
    let body = timeout(SILENCE, body).await.map_err(|_| failed("it stopped in the middle of an answer"))?;
    let body = body.map_err(|error| failed(&error.to_string()))?.to_bytes();
    let mut answer: Value = serde_json::from_slice(&body).map_err(|error| failed(&format!("its answer: {error}")))?;
    let choice = answer["choices"][0].take();
    if choice["message"].is_null() {
        return Err(failed("its answer is no chat completion"));
    }
    let mut delta = choice["message"].clone();
    for (index, call) in delta["tool_calls"].as_array_mut().into_iter().flatten().enumerate() {
        call["index"] = index.into();
    }
    let chunk = json!({
        "choices": [{"delta": delta, "finish_reason": choice["finish_reason"], "logprobs": choice["logprobs"]}],
        "usage": answer["usage"],
    });
    Ok((Pieces::of(None, key), chunk))
}

fn failed(text: &str) -> Error {
    Error::unavailable(format!("the API failed: {text}"), Duration::from_secs(1))
}

fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}
