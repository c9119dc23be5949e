//! PolicyService over gRPC: translate, call, translate back.
use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use openclaw_rl_client::{
    Code, Error,
    v1::{self, chat_response::Event as ChatEvent, policy_service_fetch_weights_response::Message as Fetched},
};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{UnboundedReceiverStream, WatchStream};
use tonic::{Request, Response, Status, Streaming, codegen::BoxStream};

use crate::{
    chat,
    guard::Caller,
    playbook,
    receiver::Receiver,
    response::{Event, Response as Making},
    sessions,
    turns::{Call, Desk, Origin},
};

/// Bytes of a chunk of weights.
const CHUNK: usize = 1 << 20;

pub struct Policy {
    desk: Arc<Desk>,
    receiver: Arc<tokio::sync::Mutex<Receiver>>,
    trainer: Arc<Mutex<Trainer>>,
}

/// Who has the weight stream: its id, and what tells it that a newer stream took over.
#[derive(Default)]
struct Trainer {
    id: String,
    stream: Weak<watch::Sender<bool>>,
}

impl Policy {
    pub fn new(desk: Arc<Desk>, receiver: Receiver) -> Self {
        Self { desk, receiver: Arc::new(tokio::sync::Mutex::new(receiver)), trainer: Arc::default() }
    }

    /// Lets a trainer have the stream. A restarted one takes its own over; another one waits while the first is there.
    fn admit(&self, id: &str) -> Result<Arc<watch::Sender<bool>>, Error> {
        let mut current = self.trainer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = current.stream.upgrade() {
            if !id.is_empty() && !current.id.is_empty() && id != current.id {
                let text = format!(
                    "another trainer ({}) updates this policy server, this one ({id}) can't too: stop one of the two",
                    current.id
                );
                return Err(Error::new(Code::FailedPrecondition, "ANOTHER_TRAINER", text)
                    .with_retry_after(Duration::from_secs(5)));
            }
            stream.send_replace(true);
        }
        let stream = Arc::new(watch::Sender::new(false));
        *current = Trainer { id: id.into(), stream: Arc::downgrade(&stream) };
        Ok(stream)
    }
}

fn caller<T>(request: &Request<T>) -> Caller {
    request.extensions().get::<Caller>().cloned().unwrap_or_default()
}

fn trace(metadata: &tonic::metadata::MetadataMap) -> Option<v1::TraceContext> {
    let text = |name| metadata.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    Some(v1::TraceContext { traceparent: text("traceparent")?, tracestate: text("tracestate").unwrap_or_default() })
}

#[tonic::async_trait]
impl v1::policy_service_server::PolicyService for Policy {
    async fn chat(&self, request: Request<v1::ChatRequest>) -> Result<Response<BoxStream<v1::ChatResponse>>, Status> {
        let (caller, trace) = (caller(&request), trace(request.metadata()));
        let request = request.into_inner();
        chat::check_messages(&request.messages)?;
        chat::check_tools(&request.tools)?;
        let mut options = request.turn.unwrap_or_default();
        let mut client = sessions::client(&caller.key, &caller.address, "");
        if caller.role.as_deref().is_some_and(|role| role != "env_server") {
            (options.episode, options.on_behalf_of) = (None, None); // of others it is no more than a claim
        }
        if let Some(asking) = options.on_behalf_of.take() {
            client = asking.client;
        }
        let origin = Origin { client, api: "grpc.chat", metadata: request.metadata, trace };
        let head = self.desk.open(options, origin, &request.messages, 1)?;
        let call = Call {
            tool_choice: chat::check_tool_choice(&request.tool_choice, &request.tools)?,
            messages: request.messages,
            tools: request.tools,
            parallel_tool_calls: request.parallel_tool_calls.unwrap_or(true),
            sampling: request.sampling.unwrap_or_default(),
            deadline: caller.deadline,
            ..Call::default()
        };
        let start = v1::ChatStart {
            turn_id: head.turn_id.clone(),
            session_id: head.session_id.clone(),
            policy_version: 0,
            model: self.desk.upstream.model.clone(),
        };
        let making = self.desk.respond(&head, call, 0)?;
        Ok(Response::new(Box::pin(stream::unfold((making, start), next_piece))))
    }

    async fn generate(
        &self,
        request: Request<v1::GenerateRequest>,
    ) -> Result<Response<BoxStream<v1::GenerateResponse>>, Status> {
        if request.get_ref().prompt_ids.is_empty() {
            return Err(Error::invalid("prompt_ids", "[] is not allowed: must be at least one token").into());
        }
        Err(self.no_weights("it continues no text or tokens; use Chat").into())
    }

    async fn score(&self, _: Request<v1::ScoreRequest>) -> Result<Response<v1::ScoreResponse>, Status> {
        Err(self.no_weights("it scores no tokens").into())
    }

    async fn submit_feedback(
        &self,
        request: Request<v1::SubmitFeedbackRequest>,
    ) -> Result<Response<v1::SubmitFeedbackResponse>, Status> {
        let caller = caller(&request);
        let mut feedback = request.into_inner().feedback.unwrap_or_default();
        feedback.client = sessions::client(&caller.key, &caller.address, "");
        let feedback_id = self.desk.feedback(feedback)?;
        Ok(Response::new(v1::SubmitFeedbackResponse { feedback_id }))
    }

    async fn get_policy(&self, _: Request<v1::GetPolicyRequest>) -> Result<Response<v1::GetPolicyResponse>, Status> {
        Ok(Response::new(v1::GetPolicyResponse {
            state: Some(self.desk.versions.state()),
            manifests: self.desk.versions.manifests(),
        }))
    }

    async fn watch_policy(
        &self,
        _: Request<v1::WatchPolicyRequest>,
    ) -> Result<Response<BoxStream<v1::WatchPolicyResponse>>, Status> {
        let states = WatchStream::new(self.desk.versions.subscribe());
        Ok(Response::new(Box::pin(states.map(|state| Ok(v1::WatchPolicyResponse { state: Some(state) })))))
    }

    async fn activate_version(
        &self,
        request: Request<v1::ActivateVersionRequest>,
    ) -> Result<Response<v1::ActivateVersionResponse>, Status> {
        let request = request.into_inner();
        let versions = &self.desk.versions;
        if request.version.is_none() && request.pin.is_none() {
            let kept = versions.state().kept_versions;
            return Err(Error::invalid("version", format!("is unset: must be one of {kept:?}")).into());
        }
        let state = versions.activate(request.version, &request.reason, request.pin)?;
        Ok(Response::new(v1::ActivateVersionResponse { state: Some(state), pause_ms: 0.0 }))
    }

    async fn fetch_weights(
        &self,
        request: Request<v1::PolicyServiceFetchWeightsRequest>,
    ) -> Result<Response<BoxStream<v1::PolicyServiceFetchWeightsResponse>>, Status> {
        let messages = self.fetch(request.into_inner())?;
        let wrap = |message| Ok(v1::PolicyServiceFetchWeightsResponse { message: Some(message) });
        Ok(Response::new(Box::pin(stream::iter(messages).map(wrap))))
    }

    async fn sync_weights(
        &self,
        request: Request<Streaming<v1::SyncWeightsRequest>>,
    ) -> Result<Response<BoxStream<v1::SyncWeightsResponse>>, Status> {
        let id = request.metadata().get("openclaw-trainer").and_then(|id| id.to_str().ok()).unwrap_or_default();
        let stream = self.admit(id)?;
        let (sender, answers) = mpsc::unbounded_channel();
        let sync = Sync { answers: sender, states: self.desk.versions.subscribe(), told: None };
        tokio::spawn(sync.serve(request.into_inner(), stream, Arc::clone(&self.receiver)));
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(answers))))
    }
}

impl Policy {
    fn no_weights(&self, why: &str) -> Error {
        let text = format!("{} is an API model: {why}", self.desk.upstream.model);
        Error::new(Code::FailedPrecondition, "NO_WEIGHTS", text)
    }

    /// The offer, then the transfer in chunks; the same request gives the same bytes.
    fn fetch(&self, request: v1::PolicyServiceFetchWeightsRequest) -> Result<Vec<Fetched>, Error> {
        let versions = &self.desk.versions;
        let state = versions.state();
        let version = request.version.unwrap_or(state.active_version);
        let here = &state.kept_versions;
        let found = versions.get(version).filter(|_| here.contains(&version));
        let (manifest, data) = found.ok_or_else(|| {
            Error::new(Code::NotFound, "NOT_FOUND", format!("there is no version '{version}'; here are {here:?}"))
        })?;
        let mut names = request.tensors;
        if let Some(base) = request.base_version {
            let base = versions.get(base).filter(|_| here.contains(&base)).ok_or_else(|| {
                let text = format!("base_version {base} is not here to tell the differences from; here are {here:?}");
                Error::new(Code::FailedPrecondition, "VERSION_UNKNOWN", text)
            })?;
            if names.is_empty() && base.1 != data {
                names.push(playbook::TENSOR.into());
            }
        } else if names.is_empty() {
            names.push(playbook::TENSOR.into());
        }
        if let Some(at) = names.iter().position(|name| name != playbook::TENSOR) {
            let problem = format!("{:?} is not allowed: must be the name of a tensor of the version", names[at]);
            return Err(Error::invalid(format!("tensors[{at}]"), problem));
        }
        if names.len() > 1 {
            return Err(Error::invalid("tensors", "'playbook' is not allowed: must be there once only"));
        }
        let total = if names.is_empty() { 0 } else { data.len() };
        let from = usize::try_from(request.from_byte).ok().filter(|from| *from <= total).ok_or_else(|| {
            let allowed = format!("between 0 and {total}, the bytes of this transfer");
            Error::invalid("from_byte", format!("{} is not allowed: must be {allowed}", request.from_byte))
        })?;
        let offer =
            v1::WeightOffer { manifest: Some(manifest), base_version: None, tensors: vec![playbook::spec(&data)] };
        let chunk = |at: usize| {
            let piece: Bytes = data.slice(at..total.min(at + CHUNK));
            Fetched::Chunk(v1::WeightChunk { version, offset: at as i64, crc32c: crc32c::crc32c(&piece), data: piece })
        };
        Ok(std::iter::once(Fetched::Offer(offer)).chain((from..total).step_by(CHUNK).map(chunk)).collect())
    }
}

type Piece = (Result<v1::ChatResponse, Status>, (Making, v1::ChatStart));

async fn next_piece((mut making, start): (Making, v1::ChatStart)) -> Option<Piece> {
    let event = match making.next().await? {
        Err(error) => return Some((Err(error.into()), (making, start))),
        Ok(Event::Start { version }) => ChatEvent::Start(v1::ChatStart { policy_version: version, ..start.clone() }),
        Ok(Event::Delta { text, calls, .. }) => {
            ChatEvent::Delta(v1::ChatDelta { content: text, tool_calls: calls, tokens: Vec::new() })
        }
        Ok(Event::End { reason, message, prompt_tokens, completion_tokens }) => ChatEvent::End(v1::ChatEnd {
            generation: Some(v1::GenerationEnd {
                finish_reason: reason.into(),
                prompt_tokens,
                completion_tokens,
                spans: Vec::new(),
            }),
            message: Some(message),
        }),
    };
    Some((Ok(v1::ChatResponse { event: Some(event) }), (making, start)))
}

/// One SyncWeights stream.
struct Sync {
    answers: mpsc::UnboundedSender<Result<v1::SyncWeightsResponse, Status>>,
    states: watch::Receiver<v1::PolicyState>,
    /// The active version that the trainer knows of, and whether it is pinned.
    told: Option<(i64, bool)>,
}

impl Sync {
    async fn serve(
        mut self,
        mut requests: Streaming<v1::SyncWeightsRequest>,
        stream: Arc<watch::Sender<bool>>,
        receiver: Arc<tokio::sync::Mutex<Receiver>>,
    ) {
        let mut taken_over = stream.subscribe();
        self.tell();
        let mut receiver = tokio::select! {
            receiver = receiver.lock() => receiver,
            _ = taken_over.wait_for(|over| *over) => return self.aborted(),
        };
        receiver.connected();
        loop {
            tokio::select! {
                biased;
                () = self.answers.closed() => return,
                _ = taken_over.wait_for(|over| *over) => return self.aborted(),
                changed = self.states.changed() => match changed {
                    Ok(()) => self.tell(),
                    Err(_) => return,
                },
                request = requests.message() => match request {
                    Ok(Some(request)) => for answer in receiver.handle(request) {
                        if let Some(v1::sync_weights_response::Message::Activated(done)) = &answer.message {
                            self.told = self.told.map(|(_, pinned)| (done.version, pinned));
                        }
                        let _ = self.answers.send(Ok(answer));
                    },
                    Ok(None) => return,
                    Err(status) => {
                        let _ = self.answers.send(Err(Error::from(status).into()));
                        return;
                    }
                },
            }
        }
    }

    /// Tells the state, at first and when an operator changed it.
    fn tell(&mut self) {
        let state = self.states.borrow_and_update().clone();
        let now = (state.active_version, state.pinned);
        if self.told != Some(now) {
            self.told = Some(now);
            let message = Some(v1::sync_weights_response::Message::State(state));
            let _ = self.answers.send(Ok(v1::SyncWeightsResponse { message }));
        }
    }

    fn aborted(self) {
        let text = "a newer SyncWeights stream took over; one trainer at a time can update a policy server";
        let error = Error::new(Code::Aborted, "ABORTED", text).with_retry_after(Duration::from_secs(5));
        let _ = self.answers.send(Err(error.into()));
    }
}
