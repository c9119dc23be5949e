use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use openclaw_rl_client::{
    Code, Error,
    v1::{
        self, component_service_server as component, environment_service_server as environment,
        policy_service_server as policy,
    },
};
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream, wrappers::TcpListenerStream};
use tonic::{
    Request, Response, Status, Streaming,
    transport::server::{Router, Server},
};

pub type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Serves until the test ends; gives HOST:PORT.
pub async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(router.serve_with_incoming(TcpListenerStream::new(listener)));
    address
}

/// Waits until something holds.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never happened that {what}");
}

/// A policy server that says what it is told to.
#[derive(Clone, Default)]
pub struct Policy {
    pub cancelled: Arc<AtomicBool>,
    pub watches: Arc<AtomicUsize>,
}

impl Policy {
    pub async fn start(&self) -> String {
        let limit = 16 << 20;
        let service = policy::PolicyServiceServer::new(self.clone())
            .max_decoding_message_size(limit)
            .max_encoding_message_size(32 << 20);
        serve(Server::builder().add_service(service)).await
    }
}

struct Noticed(Arc<AtomicBool>);

impl Drop for Noticed {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[tonic::async_trait]
impl policy::PolicyService for Policy {
    async fn chat(&self, request: Request<v1::ChatRequest>) -> Result<Response<Answers<v1::ChatResponse>>, Status> {
        use v1::chat_response::Event;
        let request = request.into_inner();
        let text = request.messages.last().unwrap().content.clone();
        if text == "refuse" {
            return Err(Error::invalid("messages[0].role", "it is not allowed")
                .with_retry_after(Duration::from_millis(2500))
                .into());
        }
        let event = |event| Ok(v1::ChatResponse { event: Some(event) });
        let start = event(Event::Start(v1::ChatStart {
            turn_id: "turn_1".into(),
            session_id: request.turn.unwrap_or_default().session_id,
            policy_version: 7,
            model: "fake".into(),
        }));
        if text == "forever" {
            let noticed = Noticed(Arc::clone(&self.cancelled));
            let rest = tokio_stream::pending().map(move |never: Result<v1::ChatResponse, Status>| {
                let _ = &noticed;
                never
            });
            return Ok(Response::new(Box::pin(tokio_stream::iter([start]).chain(rest))));
        }
        if text == "half" {
            return Ok(Response::new(Box::pin(tokio_stream::iter([start]))));
        }
        let delta =
            |content: &str| event(Event::Delta(v1::ChatDelta { content: content.into(), ..Default::default() }));
        let end = event(Event::End(v1::ChatEnd {
            message: Some(openclaw_rl_client::assistant(format!("you said {text}"))),
            ..Default::default()
        }));
        // One without an event, as of a newer contract, comes between.
        let pieces = [start, delta("you said "), Ok(v1::ChatResponse { event: None }), delta(&text), end];
        Ok(Response::new(Box::pin(tokio_stream::iter(pieces))))
    }

    async fn score(&self, request: Request<v1::ScoreRequest>) -> Result<Response<v1::ScoreResponse>, Status> {
        if request.get_ref().token_ids.is_empty() {
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        Ok(Response::new(v1::ScoreResponse { logprobs: vec![0.5; 6 << 20], version: 0 }))
    }

    async fn submit_feedback(
        &self,
        request: Request<v1::SubmitFeedbackRequest>,
    ) -> Result<Response<v1::SubmitFeedbackResponse>, Status> {
        let key = request.metadata().get("authorization").map_or("", |value| value.to_str().unwrap());
        Ok(Response::new(v1::SubmitFeedbackResponse { feedback_id: key.to_owned() }))
    }

    async fn watch_policy(
        &self,
        _: Request<v1::WatchPolicyRequest>,
    ) -> Result<Response<Answers<v1::WatchPolicyResponse>>, Status> {
        let version = self.watches.fetch_add(1, Ordering::Relaxed) as i64;
        if version == 3 {
            return Err(Error::new(Code::PermissionDenied, "WRONG_SCOPE", "the key's scopes don't open this").into());
        }
        let state = v1::PolicyState { active_version: version, ..Default::default() };
        let answers = [Ok(v1::WatchPolicyResponse { state: Some(state) }), Err(Status::unavailable("it stops"))];
        Ok(Response::new(Box::pin(tokio_stream::iter(answers))))
    }
}

/// A component that says who it is.
pub struct Component {
    pub name: &'static str,
    pub contract: &'static str,
}

impl Component {
    pub async fn start(self) -> String {
        serve(Server::builder().add_service(component::ComponentServiceServer::new(self))).await
    }
}

#[tonic::async_trait]
impl component::ComponentService for Component {
    async fn get_status(&self, _: Request<v1::GetStatusRequest>) -> Result<Response<v1::GetStatusResponse>, Status> {
        Ok(Response::new(v1::GetStatusResponse {
            status: Some(v1::ComponentStatus {
                name: self.name.into(),
                contract_version: self.contract.into(),
                ..Default::default()
            }),
        }))
    }
}

/// How an environment server answers messages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Manners {
    Good,
    NeverAcks,
    AcksOthers,
    /// Stores two, acknowledges one, breaks.
    Cuts,
    /// Rejects messages whose id begins with "bad".
    Rejects,
}

/// An environment server.
#[derive(Clone)]
pub struct Environment {
    pub manners: Manners,
    pub stored: Arc<Mutex<Vec<String>>>,
    pub streams: Arc<AtomicUsize>,
    pub renewed: Arc<AtomicUsize>,
    pub released: Arc<AtomicUsize>,
    pub steps: Arc<Mutex<Vec<i64>>>,
    pub lost: Arc<AtomicBool>,
    /// The mesh that it says to be of; empty says none.
    pub mesh: Arc<Mutex<String>>,
}

impl Environment {
    pub fn new(manners: Manners) -> Self {
        Self {
            manners,
            stored: Arc::default(),
            streams: Arc::default(),
            renewed: Arc::default(),
            released: Arc::default(),
            steps: Arc::default(),
            lost: Arc::default(),
            mesh: Arc::default(),
        }
    }

    pub async fn start(&self) -> String {
        let service = environment::EnvironmentServiceServer::new(self.clone());
        serve(Server::builder().add_service(service)).await
    }

    fn keep(&self, id: &str) -> v1::AckStatus {
        let mut stored = self.stored.lock().unwrap();
        if self.manners == Manners::Rejects && id.starts_with("bad") {
            v1::AckStatus::Rejected
        } else if stored.iter().any(|known| known == id) {
            v1::AckStatus::Duplicate
        } else {
            stored.push(id.to_owned());
            v1::AckStatus::Accepted
        }
    }
}

#[tonic::async_trait]
impl environment::EnvironmentService for Environment {
    async fn record_turns(
        &self,
        request: Request<Streaming<v1::RecordTurnsRequest>>,
    ) -> Result<Response<Answers<v1::RecordTurnsResponse>>, Status> {
        use openclaw_rl_client::delivery::RingMessage as _;
        self.streams.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = mpsc::channel(4);
        let (this, mut requests) = (self.clone(), request.into_inner());
        tokio::spawn(async move {
            while let Ok(Some(request)) = requests.message().await {
                let mut acks = Vec::new();
                for event in request.events {
                    let id = event.id().to_owned();
                    let status = this.keep(&id);
                    if this.manners == Manners::Cuts && status == v1::AckStatus::Accepted && acks.len() == 1 {
                        let _ = sender.send(Ok(v1::RecordTurnsResponse { acks })).await;
                        let _ = sender.send(Err(Status::unavailable("cut"))).await;
                        return;
                    }
                    acks.push(v1::Ack {
                        id: if this.manners == Manners::AcksOthers { format!("not-{id}") } else { id },
                        status: status.into(),
                        reason: if status == v1::AckStatus::Rejected { "it is bad".into() } else { String::new() },
                    });
                }
                if this.manners != Manners::NeverAcks {
                    let _ = sender.send(Ok(v1::RecordTurnsResponse { acks })).await;
                }
            }
        });
        let mut response: Response<Answers<v1::RecordTurnsResponse>> =
            Response::new(Box::pin(ReceiverStream::new(receiver)));
        let mesh = self.mesh.lock().unwrap();
        if !mesh.is_empty() {
            response.metadata_mut().insert("openclaw-mesh", mesh.parse().unwrap());
        }
        Ok(response)
    }

    async fn interact(
        &self,
        request: Request<Streaming<v1::InteractRequest>>,
    ) -> Result<Response<Answers<v1::InteractResponse>>, Status> {
        // Its headers come with its first answer only, as with some servers.
        let mut requests = request.into_inner();
        let first = requests.message().await?.unwrap();
        let session = first.turn.clone().unwrap_or_default().session_id;
        let answers = tokio_stream::once(Ok(first)).chain(requests).map(move |request| {
            let turn =
                v1::Turn { session_id: session.clone(), response: request?.messages.pop(), ..Default::default() };
            Ok(v1::InteractResponse { event: Some(v1::interact_response::Event::Turn(turn)) })
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn acquire(&self, request: Request<v1::AcquireRequest>) -> Result<Response<v1::AcquireResponse>, Status> {
        let request = request.into_inner();
        if request.r#type == "slow" {
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        Ok(Response::new(v1::AcquireResponse {
            lease_id: request.lease_id,
            expires_at: Some(by_another_clock()),
            ..Default::default()
        }))
    }

    async fn step(&self, request: Request<v1::StepRequest>) -> Result<Response<v1::StepResponse>, Status> {
        let request = request.into_inner();
        if request.action_json.is_empty() {
            return Err(Error::invalid("action_json", "it is empty").into());
        }
        self.steps.lock().unwrap().push(request.step);
        Ok(Response::new(v1::StepResponse::default()))
    }

    async fn renew(&self, _: Request<v1::RenewRequest>) -> Result<Response<v1::RenewResponse>, Status> {
        if self.lost.load(Ordering::Relaxed) {
            return Err(Error::new(Code::NotFound, "LEASE_LOST", "there is no such lease; acquire another one").into());
        }
        self.renewed.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new(v1::RenewResponse { expires_at: Some(by_another_clock()) }))
    }

    async fn release(&self, _: Request<v1::ReleaseRequest>) -> Result<Response<v1::ReleaseResponse>, Status> {
        self.released.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new(v1::ReleaseResponse {}))
    }
}

fn by_another_clock() -> prost_types::Timestamp {
    (std::time::SystemTime::now() + Duration::from_secs(7 * 3600)).into()
}
