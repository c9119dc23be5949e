use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;
use tonic::Request;

use crate::{
    Answers, Code, Component, ComponentClient, Connection, Error, Result, Role, Transport, Watch,
    v1::{self, policy_service_client::PolicyServiceClient},
};

/// The policy server: it answers.
#[derive(Clone, Debug)]
pub struct PolicyClient(Connection);

impl Component for PolicyClient {
    const ROLE: Role = Role::Policy;
}

/// A conversation to be answered: messages, and what is wanted of the turn.
///
/// ```
/// # use openclaw_rl_client::Chat;
/// let chat = Chat::user("What is a heron?").session("s-1").max_tokens(64);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Chat {
    request: v1::ChatRequest,
    deadline: Option<Duration>,
}

impl Chat {
    /// An empty conversation.
    pub fn new() -> Self {
        Self::default()
    }

    /// One that begins with a user's message.
    pub fn user(text: impl Into<String>) -> Self {
        Self::new().message(user(text))
    }

    /// Adds a message.
    pub fn message(mut self, message: v1::ChatMessage) -> Self {
        self.request.messages.push(message);
        self
    }

    /// Adds messages.
    pub fn messages(mut self, messages: impl IntoIterator<Item = v1::ChatMessage>) -> Self {
        self.request.messages.extend(messages);
        self
    }

    /// Session of the turn; without one the mesh finds it by the messages.
    pub fn session(mut self, id: impl Into<String>) -> Self {
        self.turn().session_id = id.into();
        self
    }

    /// "main", "side", or a label of your own.
    pub fn turn_type(mut self, kind: impl Into<String>) -> Self {
        self.turn().turn_type = kind.into();
        self
    }

    /// The session ends with this turn.
    pub fn session_done(mut self) -> Self {
        self.turn().session_done = true;
        self
    }

    /// Lowest policy version that may answer.
    pub fn min_version(mut self, version: i64) -> Self {
        self.turn().min_version = Some(version);
        self
    }

    /// The only policy version that may answer.
    pub fn exact_version(mut self, version: i64) -> Self {
        self.turn().exact_version = Some(version);
        self
    }

    /// Leaves no record: nothing is judged or learnt.
    pub fn no_record(mut self) -> Self {
        self.turn().no_record = true;
        self
    }

    /// Adds a function that the policy may call; `parameters` is a JSON schema, empty for none.
    pub fn tool(
        mut self,
        name: impl Into<String>,
        description: impl Into<String>,
        parameters: impl Into<String>,
    ) -> Self {
        self.request.tools.push(v1::ToolDefinition {
            name: name.into(),
            description: description.into(),
            parameters_json: parameters.into(),
            ..Default::default()
        });
        self
    }

    /// "auto", "none", "required" or a function's name.
    pub fn tool_choice(mut self, choice: impl Into<String>) -> Self {
        self.request.tool_choice = choice.into();
        self
    }

    /// How to sample.
    pub fn sampling(mut self, sampling: v1::SamplingParams) -> Self {
        self.request.sampling = Some(sampling);
        self
    }

    /// 0 decodes greedily.
    pub fn temperature(mut self, temperature: f64) -> Self {
        self.request.sampling.get_or_insert_default().temperature = Some(temperature);
        self
    }

    /// Most tokens of the answer.
    pub fn max_tokens(mut self, tokens: i32) -> Self {
        self.request.sampling.get_or_insert_default().max_tokens = Some(tokens);
        self
    }

    /// Data of your own that is kept with the turn.
    pub fn metadata(mut self, data: HashMap<String, String>) -> Self {
        self.request.metadata = data;
        self
    }

    /// Time for the whole answer.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    fn turn(&mut self) -> &mut v1::TurnOptions {
        self.request.turn.get_or_insert_default()
    }
}

impl From<v1::ChatRequest> for Chat {
    fn from(request: v1::ChatRequest) -> Self {
        Self { request, deadline: None }
    }
}

/// A user's message.
pub fn user(text: impl Into<String>) -> v1::ChatMessage {
    message("user", text)
}

/// A system message.
pub fn system(text: impl Into<String>) -> v1::ChatMessage {
    message("system", text)
}

/// An assistant's message.
pub fn assistant(text: impl Into<String>) -> v1::ChatMessage {
    message("assistant", text)
}

/// A tool's result, to the call with this id.
pub fn tool_result(call_id: impl Into<String>, text: impl Into<String>) -> v1::ChatMessage {
    v1::ChatMessage { tool_call_id: call_id.into(), ..message("tool", text) }
}

fn message(role: &str, text: impl Into<String>) -> v1::ChatMessage {
    v1::ChatMessage { role: role.into(), content: text.into(), ..Default::default() }
}

/// A piece of a chat answer: one `Start`, `Delta`s, one `End`.
pub use v1::chat_response::Event as ChatEvent;
/// A piece of a generation: `Token`s, one `End`.
pub use v1::generate_response::Event as GenerateEvent;

/// An answer as it comes. Dropping it cancels the call; the turn is recorded as far as it came.
pub struct ChatStream(Answers<v1::ChatResponse>);

impl ChatStream {
    /// The next piece; `None` at the end.
    pub async fn next(&mut self) -> Option<Result<ChatEvent>> {
        loop {
            match self.0.next().await? {
                Ok(answer) => match answer.event {
                    Some(event) => return Some(Ok(event)),
                    None => continue, // of a newer contract
                },
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// The rest at once: how it began (unless that was read already), and how it ended.
    pub async fn finish(mut self) -> Result<ChatAnswer> {
        let (mut start, mut end) = (v1::ChatStart::default(), None);
        while let Some(event) = self.next().await {
            match event? {
                ChatEvent::Start(event) => start = event,
                ChatEvent::Delta(_) => {}
                ChatEvent::End(event) => end = Some(event),
            }
        }
        let broken = || Error::new(Code::Internal, "INTERNAL", "the answer broke off: it has no end");
        Ok(ChatAnswer { start, end: end.ok_or_else(broken)? })
    }

    /// As a stream of the contract's messages.
    pub fn into_inner(self) -> Answers<v1::ChatResponse> {
        self.0
    }
}

/// A whole answer.
#[derive(Clone, Debug, Default)]
pub struct ChatAnswer {
    /// Turn, session, version, model.
    pub start: v1::ChatStart,
    /// The message, why it ended and how long it is.
    pub end: v1::ChatEnd,
}

impl ChatAnswer {
    /// The text.
    pub fn text(&self) -> &str {
        self.end.message.as_ref().map_or("", |message| &message.content)
    }
}

impl PolicyClient {
    /// Answers a conversation, token by token.
    pub async fn chat(&self, chat: impl Into<Chat>) -> Result<ChatStream> {
        let chat = chat.into();
        let (request, deadline) = with_deadline(&self.0, chat.request, chat.deadline)?;
        let answers = self.raw().chat(request).await.map_err(|s| self.0.error(s))?;
        Ok(ChatStream(Answers::new(&self.0, answers.into_inner(), deadline)))
    }

    /// Continues token ids, token by token. An API model has none: `NO_WEIGHTS`.
    pub async fn generate(
        &self,
        request: v1::GenerateRequest,
        deadline: Option<Duration>,
    ) -> Result<Answers<v1::GenerateResponse>> {
        let (request, deadline) = with_deadline(&self.0, request, deadline)?;
        let answers = self.raw().generate(request).await.map_err(|s| self.0.error(s))?;
        Ok(Answers::new(&self.0, answers.into_inner(), deadline))
    }

    /// Log-probability of each token but the first, and the version that scored.
    pub async fn score(&self, token_ids: Vec<i32>, version: Option<i64>) -> Result<v1::ScoreResponse> {
        let request = self.0.request(v1::ScoreRequest { token_ids, version })?;
        let answer = self.raw().score(request).await.map_err(|s| self.0.error(s))?;
        Ok(answer.into_inner())
    }

    /// Says what you think of a turn, from -1 to 1; gives the feedback's id.
    pub async fn rate(&self, turn_id: impl Into<String>, score: f64, comment: impl Into<String>) -> Result<String> {
        self.submit_feedback(v1::Feedback {
            turn_id: turn_id.into(),
            score: Some(score),
            comment: comment.into(),
            ..Default::default()
        })
        .await
    }

    /// Gives feedback on a turn or a session; gives its id.
    pub async fn submit_feedback(&self, feedback: v1::Feedback) -> Result<String> {
        let request = self.0.request(v1::SubmitFeedbackRequest { feedback: Some(feedback) })?;
        let answer = self.raw().submit_feedback(request).await.map_err(|s| self.0.error(s))?;
        Ok(answer.into_inner().feedback_id)
    }

    /// The active version, those that can be activated, and their manifests.
    pub async fn get_policy(&self) -> Result<v1::GetPolicyResponse> {
        let request = self.0.request(v1::GetPolicyRequest {})?;
        let answer = self.raw().get_policy(request).await.map_err(|s| self.0.error(s))?;
        Ok(answer.into_inner())
    }

    /// The state now, and again at each change.
    pub fn watch_policy(&self) -> Watch<v1::WatchPolicyResponse> {
        let this = self.clone();
        Watch::new(&self.0, move || {
            let this = this.clone();
            async move {
                let answers = this.raw().watch_policy(v1::WatchPolicyRequest {}).await;
                let answers = answers.map_err(|s| this.0.error(s))?.into_inner();
                Ok(Answers::new(&this.0, answers, None))
            }
        })
    }

    /// Rolls back to a kept version, or forward again. Refused with `PINNED` while another one is pinned.
    pub async fn activate(&self, version: i64, reason: impl Into<String>) -> Result<v1::PolicyState> {
        self.activation(Some(version), reason.into(), None).await
    }

    /// Stays with a version (`None`: the active one), whatever the trainer offers.
    pub async fn pin(&self, version: Option<i64>, reason: impl Into<String>) -> Result<v1::PolicyState> {
        self.activation(version, reason.into(), Some(true)).await
    }

    /// Lifts the pin.
    pub async fn unpin(&self, reason: impl Into<String>) -> Result<v1::PolicyState> {
        self.activation(None, reason.into(), Some(false)).await
    }

    async fn activation(&self, version: Option<i64>, reason: String, pin: Option<bool>) -> Result<v1::PolicyState> {
        let request = v1::ActivateVersionRequest { version, reason, pin };
        // A large model takes its time to load.
        let request = self.0.patient(request, Duration::from_secs(270))?;
        let answer = self.raw().activate_version(request).await.map_err(|s| self.0.error(s))?;
        Ok(answer.into_inner().state.unwrap_or_default())
    }

    /// The generated stub, for what this client does not wrap.
    pub fn raw(&self) -> PolicyServiceClient<Transport> {
        crate::stub!(PolicyServiceClient, self.0)
    }

    /// Status and figures.
    pub fn component(&self) -> ComponentClient {
        self.0.clone().into()
    }
}

crate::client!(PolicyClient, "the policy server");

fn with_deadline<T: prost::Message>(
    connection: &Connection,
    message: T,
    deadline: Option<Duration>,
) -> Result<(Request<T>, Option<Instant>)> {
    connection.fits(&message)?;
    let mut request = Request::new(message);
    let at = deadline.map(|deadline| {
        request.set_timeout(deadline);
        Instant::now() + deadline
    });
    Ok((request, at))
}
