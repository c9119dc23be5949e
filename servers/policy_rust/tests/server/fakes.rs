use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Json, Router, body::Body, extract::State, http::StatusCode, response::IntoResponse as _, routing::post};
use openclaw_rl_client::{
    ChatAnswer, Code, Error, PolicyClient, Result,
    v1::{self, environment_service_server as environment, policy_event::Event},
};
use serde_json::{Value, json};
use tokio_stream::{StreamExt as _, wrappers::TcpListenerStream};
use tonic::{Request, Response, Status, Streaming, codegen::BoxStream, transport::server::Server};

/// The mesh of the tests.
pub const OURS: &str = "mesh-a";

/// Waits until something is there.
pub async fn until<T>(what: &str, mut there: impl FnMut() -> Option<T>) -> T {
    for _ in 0..3000 {
        if let Some(found) = there() {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never happened that {what}");
}

/// An API that does what its first message's text says, and keeps what it was asked.
#[derive(Clone, Default)]
pub struct Api {
    pub asked: Arc<Mutex<Vec<Value>>>,
}

impl Api {
    pub async fn start(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let router = Router::new().route("/v1/chat/completions", post(answer)).with_state(self.clone());
        tokio::spawn(async { axum::serve(listener, router).await });
        url
    }

    /// The messages of the last request.
    pub fn last(&self) -> Vec<Value> {
        self.asked.lock().unwrap().last().unwrap()["messages"].as_array().unwrap().clone()
    }
}

async fn answer(State(api): State<Api>, Json(body): Json<Value>) -> axum::response::Response {
    let text = body["messages"].as_array().unwrap().last().unwrap()["content"].as_str().unwrap_or_default().to_owned();
    let times = {
        let mut asked = api.asked.lock().unwrap();
        asked.push(body.clone());
        asked.iter().filter(|one| one["messages"] == body["messages"]).count()
    };
    let error = |status, message: &str| (status, Json(json!({"error": {"message": message}}))).into_response();
    match &*text {
        "no key" => return error(StatusCode::UNAUTHORIZED, "bad key sk-of-the-test"),
        "too long" => return error(StatusCode::BAD_REQUEST, "the context is too long"),
        "busy at first" if times < 2 => return error(StatusCode::SERVICE_UNAVAILABLE, "busy"),
        "whole" => {
            let message = json!({"role": "assistant", "content": "All at once."});
            return Json(json!({"choices": [{"message": message, "finish_reason": "length"}]})).into_response();
        }
        _ => {}
    }
    let event = |delta: Value, reason: Option<&str>| {
        format!("data: {}\r\n\r\n", json!({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}))
    };
    let call = |name: Option<&str>, arguments: &str| {
        let id = name.map(|_| "call_1");
        json!({"tool_calls": [{"index": 0, "id": id, "function": {"name": name, "arguments": arguments}}]})
    };
    let pieces: Vec<String> = match &*text {
        "call" => vec![event(call(Some("clock"), "{\"zo"), None), event(call(None, "ne\":1}"), Some("tool_calls"))],
        "cut" => vec![event(json!({"content": "A heron "}), None)],
        _ => vec![event(json!({"content": "A heron "}), None), event(json!({"content": "is a bird."}), Some("stop"))],
    };
    let usage = format!("data: {}\n\n", json!({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 6}}));
    let rest = match &*text {
        "break" => vec!["data: {\"error\": {\"message\": \"out of memory, sk-of-the-test\"}}\n\n".to_owned()],
        "slow" | "cut" => Vec::new(),
        _ => vec![usage, "data: [DONE]\n\n".into()],
    };
    let pieces = tokio_stream::iter(pieces.into_iter().chain(rest).map(Ok::<_, std::io::Error>));
    let body = match &*text {
        "slow" => Body::from_stream(pieces.chain(tokio_stream::pending())),
        _ => Body::from_stream(pieces),
    };
    ([("content-type", "text/event-stream")], body).into_response()
}

/// An environment server that keeps what it gets.
#[derive(Clone, Default)]
pub struct Environment {
    pub events: Arc<Mutex<Vec<Event>>>,
    /// The mesh that it says to be of; empty says none.
    pub mesh: Arc<Mutex<String>>,
}

impl Environment {
    pub async fn start(&self) -> String {
        self.start_at("127.0.0.1:0").await
    }

    pub async fn start_at(&self, address: &str) -> String {
        let listener = tokio::net::TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let service = environment::EnvironmentServiceServer::new(self.clone());
        let server = Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        address
    }

    pub async fn turn(&self, id: &str) -> v1::Turn {
        until("the turn arrives", || {
            let events = self.events.lock().unwrap();
            events.iter().find_map(|event| match event {
                Event::Turn(turn) if turn.turn_id == id => Some(turn.clone()),
                _ => None,
            })
        })
        .await
    }
}

#[tonic::async_trait]
impl environment::EnvironmentService for Environment {
    async fn record_turns(
        &self,
        request: Request<Streaming<v1::RecordTurnsRequest>>,
    ) -> std::result::Result<Response<BoxStream<v1::RecordTurnsResponse>>, Status> {
        let events = Arc::clone(&self.events);
        let acks = request.into_inner().map(move |request| {
            let mut acks = Vec::new();
            for event in request?.events {
                use openclaw_rl_client::delivery::RingMessage as _;
                let (id, status) = (event.id().to_owned(), v1::AckStatus::Accepted.into());
                acks.push(v1::Ack { id, status, reason: String::new() });
                events.lock().unwrap().extend(event.event);
            }
            Ok(v1::RecordTurnsResponse { acks })
        });
        let mut response: Response<BoxStream<v1::RecordTurnsResponse>> = Response::new(Box::pin(acks));
        let mesh = self.mesh.lock().unwrap();
        if !mesh.is_empty() {
            response.metadata_mut().insert("openclaw-mesh", mesh.parse().unwrap());
        }
        Ok(response)
    }
}

/// The server's process.
pub struct Process {
    child: Child,
    pub address: String,
    pub http: String,
}

impl Process {
    pub fn start(data: &Path, api: &str, environment: &str, more: &[&str]) -> Self {
        Self::run(Command::new(env!("CARGO_BIN_EXE_openclaw-rl-policy")), data, api, environment, more)
    }

    /// One whose log is on a full disk, and that outlives what [`fill`](Self::fill) does.
    pub fn start_logging_to_nowhere(data: &Path, api: &str, environment: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\" 2>/dev/full", env!("CARGO_BIN_EXE_openclaw-rl-policy")]);
        Self::run(command, data, api, environment, &[])
    }

    fn run(mut command: Command, data: &Path, api: &str, environment: &str, more: &[&str]) -> Self {
        let mut child = command
            .args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--model", "m", "--upstream", api])
            .args(["--environment", environment, "--data"])
            .arg(data)
            .args(more)
            .env("OPENAI_API_KEY", "sk-of-the-test")
            .env("OPENCLAW_RL_MESH", OURS)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut next = |words: &str| {
            let line = lines.next().expect("the server ended").unwrap();
            line.strip_prefix(words).unwrap_or_else(|| panic!("{line}")).to_owned()
        };
        let address = next("policy_server serves gRPC on ");
        let http = next("policy_server serves HTTP on ");
        Self { child, address, http }
    }

    pub async fn client(&self) -> PolicyClient {
        PolicyClient::connect(&self.address).await.unwrap()
    }

    /// kill -9.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Fills its disk, or makes room again: no file may grow beyond so many bytes.
    pub fn fill(&self, bytes: &str) {
        let (id, limit) = (self.child.id().to_string(), format!("--fsize={bytes}:"));
        assert!(Command::new("prlimit").args(["--pid", &id, &limit]).status().unwrap().success());
    }

    pub fn signal(&self, name: &str) {
        let done = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(done.success());
    }

    /// Its exit code, once it has ended.
    pub async fn ended(mut self) -> Option<i32> {
        until("the server ends", || self.child.try_wait().unwrap()).await.code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The three of them.
pub struct World {
    pub api: Api,
    pub environment: Environment,
    pub url: String,
    pub neighbour: String,
    pub data: tempfile::TempDir,
}

impl World {
    pub async fn new() -> Self {
        let (api, environment) = (Api::default(), Environment::default());
        let (url, neighbour) = (api.start().await, environment.start().await);
        Self { api, environment, url, neighbour, data: tempfile::tempdir().unwrap() }
    }

    pub fn start(&self) -> Process {
        Process::start(self.data.path(), &self.url, &self.neighbour, &[])
    }
}

/// A whole answer.
pub async fn ask(policy: &PolicyClient, chat: openclaw_rl_client::Chat) -> Result<ChatAnswer> {
    policy.chat(chat).await?.finish().await
}

pub fn reason<T>(result: Result<T>) -> (Code, String) {
    let error: Error = result.err().expect("an error");
    (error.code(), error.reason().to_owned())
}
