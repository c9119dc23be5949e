use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use http::HeaderValue;
use tonic::{body::Body, transport::Channel};
use tower_service::Service;

use crate::{Code, Error, Result};

/// Variable with the id of the mesh, for clients that are given none.
pub const MESH_VARIABLE: &str = "OPENCLAW_RL_MESH";
/// Metadata with the id of the mesh.
pub const MESH_KEY: &str = "openclaw-mesh";
/// Metadata with the component's name.
pub const COMPONENT_KEY: &str = "openclaw-component";

/// Which mesh and component somebody belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mesh {
    /// Id of the mesh; empty for none.
    pub id: String,
    /// Name of the component; empty for a client.
    pub component: String,
}

impl Mesh {
    /// What headers say, at most 80 characters of each.
    pub fn of(headers: &http::HeaderMap) -> Self {
        let text = |key: &str| headers.get(key).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let short = |key: &str| text(key).chars().take(80).collect();
        Self { id: short(MESH_KEY), component: short(COMPONENT_KEY) }
    }

    /// The headers that say so.
    ///
    /// # Errors
    /// One of the two has characters that no header has.
    pub fn headers(&self) -> Result<Vec<(&'static str, HeaderValue)>> {
        let given = [(MESH_KEY, &self.id), (COMPONENT_KEY, &self.component)];
        let header = |(key, value): (&'static str, &String)| match HeaderValue::from_str(value) {
            Ok(value) => Ok((key, value)),
            Err(_) => Err(Error::invalid("mesh", format!("{value:?} is not allowed: `openclaw-rl mesh id` prints it"))),
        };
        given.into_iter().filter(|(_, value)| !value.is_empty()).map(header).collect()
    }

    /// Refuses what another mesh answers. One of contract 1.0 names none, and passes.
    fn confirm(&self, headers: &http::HeaderMap) -> Result<()> {
        let there = Self::of(headers);
        if there.id.is_empty() || there.id == self.id {
            return Ok(());
        }
        let who = if there.component.is_empty() { "the component" } else { &there.component };
        let text = format!(
            "{who} there is of the mesh {}, and {} is expected: correct the address, or the builder's `mesh`; \
             `openclaw-rl mesh id` prints the id of a mesh",
            there.id, self.id
        );
        Err(Error::new(Code::FailedPrecondition, "WRONG_MESH", text)
            .with_metadata("expected", self.id.clone())
            .with_metadata("found", there.id))
    }
}

/// A channel whose calls name the mesh, and that takes no answer of another one.
#[derive(Clone)]
pub struct Identified {
    channel: Channel,
    mesh: Mesh,
    headers: Vec<(&'static str, HeaderValue)>,
}

impl Identified {
    pub(crate) fn new(channel: Channel, mesh: Mesh) -> Result<Self> {
        let headers = mesh.headers()?;
        Ok(Self { channel, mesh, headers })
    }
}

impl Service<http::Request<Body>> for Identified {
    type Response = http::Response<Body>;
    type Error = tonic::transport::Error;
    type Future = Pin<Box<dyn Future<Output = std::result::Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<std::result::Result<(), Self::Error>> {
        self.channel.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        for (key, value) in &self.headers {
            request.headers_mut().insert(*key, value.clone());
        }
        let (answer, mesh) = (self.channel.call(request), self.mesh.clone());
        Box::pin(async move {
            let response = answer.await?;
            Ok(match mesh.confirm(response.headers()) {
                Err(error) if !mesh.id.is_empty() => error.to_status().into_http(),
                _ => response,
            })
        })
    }
}
