use std::time::Duration;

use crate::{
    Component, ComponentClient, Connection, Dialogue, Lease, Result, Role, Transport,
    v1::{self, environment_service_client::EnvironmentServiceClient, interact_response::Event},
};

/// The environment server: sessions, and leased sandboxes.
#[derive(Clone, Debug)]
pub struct EnvironmentClient(Connection);

impl Component for EnvironmentClient {
    const ROLE: Role = Role::Environment;
}

/// What sandbox is wanted.
#[derive(Clone, Debug, Default)]
pub struct Acquire {
    pub(crate) kind: String,
    pub(crate) wait: Option<Duration>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) holder: String,
}

impl Acquire {
    /// One of this environment: "terminal", "gui", "swe", "tool_call" or another name of the configuration.
    pub fn new(kind: impl Into<String>) -> Self {
        Self { kind: kind.into(), ..Default::default() }
    }

    /// Longest wait for a free one; default none.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Time after which a lease that nobody renews is taken back; default a minute. [`Lease`] renews by itself.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Who asks, for operators and for the queue.
    pub fn holder(mut self, holder: impl Into<String>) -> Self {
        self.holder = holder.into();
        self
    }
}

impl EnvironmentClient {
    /// Leases a sandbox. The lease renews itself, and is given back when it is released or dropped.
    pub async fn acquire(&self, what: Acquire) -> Result<Lease> {
        Lease::acquire(self, what).await
    }

    /// A live session: send messages, read the policy's turns.
    pub fn interact(&self, options: v1::TurnOptions) -> Conversation {
        let mut stub = self.raw();
        Conversation {
            dialogue: Dialogue::open(&self.0, move |requests| async move { stub.interact(requests).await }),
            first: Some(options),
        }
    }

    /// A session and its turns.
    pub async fn session(&self, session_id: impl Into<String>) -> Result<v1::GetSessionResponse> {
        let request = self.0.request(v1::GetSessionRequest { session_id: session_id.into() })?;
        let answer = self.raw().get_session(request).await.map_err(|s| self.0.error(s))?;
        Ok(answer.into_inner())
    }

    /// Ends a session; gives the number of turns that got their next state by it.
    pub async fn end_session(&self, session_id: impl Into<String>) -> Result<i32> {
        let request = self.0.request(v1::EndSessionRequest { session_id: session_id.into() })?;
        let answer = self.raw().end_session(request).await.map_err(|s| self.0.error(s))?;
        Ok(answer.into_inner().closed_turns)
    }

    /// The generated stub, for what this client does not wrap.
    pub fn raw(&self) -> EnvironmentServiceClient<Transport> {
        crate::stub!(EnvironmentServiceClient, self.0)
    }

    /// Status and figures.
    pub fn component(&self) -> ComponentClient {
        self.0.clone().into()
    }
}

crate::client!(EnvironmentClient, "the environment server");

/// A live session. Dropping it ends the call.
pub struct Conversation {
    dialogue: Dialogue<v1::InteractRequest, v1::InteractResponse>,
    first: Option<v1::TurnOptions>,
}

impl Conversation {
    /// Sends messages; an answer is made to them.
    pub async fn send(&mut self, messages: impl IntoIterator<Item = v1::ChatMessage>) -> Result<()> {
        self.request(v1::InteractRequest { messages: messages.into_iter().collect(), ..Default::default() }).await
    }

    /// Sends a request of your own, with tools or sampling; the session's options are added to the first one.
    pub async fn request(&mut self, mut request: v1::InteractRequest) -> Result<()> {
        if let Some(options) = self.first.take() {
            request.turn = Some(options);
        }
        self.dialogue.send(request).await
    }

    /// The next piece: text that is new, or the complete turn. `None` when the server has ended the session.
    pub async fn next(&mut self) -> Option<Result<Event>> {
        loop {
            match self.dialogue.next().await? {
                Ok(answer) => match answer.event {
                    Some(event) => return Some(Ok(event)),
                    None => continue, // of a newer contract
                },
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Reads up to the complete turn; `None` when the session ended before it.
    pub async fn turn(&mut self) -> Result<Option<v1::Turn>> {
        while let Some(event) = self.next().await {
            if let Event::Turn(turn) = event? {
                return Ok(Some(turn));
            }
        }
        Ok(None)
    }

    /// Says that no further messages come.
    pub fn finish(&mut self) {
        self.dialogue.finish();
    }
}
