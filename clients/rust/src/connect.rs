use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

use tonic::{
    Code,
    metadata::MetadataValue,
    service::interceptor::InterceptedService,
    transport::{Channel, Endpoint},
};

use crate::{
    Connection, Error, Identified, MESH_VARIABLE, Mesh, Result,
    connection::{Bearer, Inner, unreachable},
    wire::{Connector, FirstBytes},
};
#[cfg(feature = "tls")]
use crate::{Tls, connection::chain};

#[cfg(feature = "tls")]
const CERTIFICATE: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// Which component an address is expected to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Answers requests.
    Policy,
    /// Keeps sessions, leases sandboxes.
    Environment,
    /// Votes on transitions.
    Judge,
    /// Learns.
    Trainer,
    /// Whichever it is.
    Any,
}

impl Role {
    /// Its name in the mesh, as `ComponentStatus.name` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Policy => "policy_server",
            Self::Environment => "env_server",
            Self::Judge => "prm_judge",
            Self::Trainer => "trainer",
            Self::Any => "component",
        }
    }

    /// Its usual port.
    pub fn port(self) -> u16 {
        match self {
            Self::Policy | Self::Any => 50051,
            Self::Environment => 50052,
            Self::Judge => 50053,
            Self::Trainer => 50054,
        }
    }
}

/// A client of one component, made by [`Builder`].
pub trait Component: From<Connection> {
    /// The component.
    const ROLE: Role;
}

/// What a connection is like. Every option has a default that suits a mesh on this machine.
#[derive(Clone)]
pub struct Builder<C> {
    address: String,
    key: Option<String>,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    deadline: Duration,
    connect_timeout: Duration,
    message_limit: usize,
    reconnect: bool,
    mesh: Mesh,
    client: PhantomData<C>,
}

impl<C: Component> Default for Builder<C> {
    fn default() -> Self {
        Self {
            address: format!("127.0.0.1:{}", C::ROLE.port()),
            key: None,
            #[cfg(feature = "tls")]
            tls: None,
            deadline: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            message_limit: 16 << 20,
            reconnect: true,
            mesh: Mesh { id: std::env::var(MESH_VARIABLE).unwrap_or_default(), component: String::new() },
            client: PhantomData,
        }
    }
}

impl<C: Component> Builder<C> {
    /// HOST:PORT; default 127.0.0.1 and the component's usual port.
    pub fn address(mut self, address: impl Into<String>) -> Self {
        self.address = address.into();
        self
    }

    /// A bearer key of the mesh, for a component's `keys_port`.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Encrypts; see [`Tls`].
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Id of the mesh (`openclaw-rl mesh id`): each call names it, and an answer of another mesh is not taken. Default:
    /// the variable OPENCLAW_RL_MESH; empty takes any. On plain text components take no ring stream of a sender without.
    pub fn mesh(mut self, id: impl Into<String>) -> Self {
        self.mesh.id = id.into();
        self
    }

    /// Which component of the mesh this side is; default a client.
    pub fn component(mut self, role: Role) -> Self {
        self.mesh.component = role.name().into();
        self
    }

    /// Time for each call that has one answer; default 30 s. Streams have a deadline only where one is given.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Time for the connection to come up; default 10 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Bytes of the largest message, in either direction; default 16 MiB, the most that the mesh takes.
    pub fn message_limit(mut self, bytes: usize) -> Self {
        self.message_limit = bytes;
        self
    }

    /// Whether watches begin anew by themselves when they break; default yes.
    pub fn reconnect(mut self, reconnect: bool) -> Self {
        self.reconnect = reconnect;
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// Nothing listens there, TLS does not come about, or an option can't be used.
    pub async fn connect(self) -> Result<C> {
        let (endpoint, connector, seen) = self.endpoint()?;
        match endpoint.connect_with_connector(connector).await {
            Ok(channel) => self.client(channel, seen),
            Err(error) => Err(unreachable(&self.address, self.encrypted(), &seen, &error, Code::Unavailable)),
        }
    }

    /// Connects with the first call, so that the component need not be there yet.
    ///
    /// # Errors
    /// An option can't be used.
    pub fn connect_lazy(self) -> Result<C> {
        let (endpoint, connector, seen) = self.endpoint()?;
        let channel = endpoint.connect_with_connector_lazy(connector);
        self.client(channel, seen)
    }

    fn encrypted(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        false
    }

    fn endpoint(&self) -> Result<(Endpoint, Connector, FirstBytes)> {
        let bad = |problem: &dyn fmt::Display| {
            let address = &self.address;
            Error::invalid("address", format!("{address:?} is not allowed: must be HOST:PORT ({problem})"))
        };
        let (host, port) = self.address.rsplit_once(':').ok_or_else(|| bad(&"there is no port"))?;
        port.parse::<u16>().map_err(|error| bad(&error))?;
        if self.key.is_some() && !self.encrypted() && !is_loopback(host) {
            return Err(Error::invalid(
                "key",
                format!("a key goes to {host} in plain text, where others can read it: give the client `tls`"),
            ));
        }
        let scheme = if self.encrypted() { "https" } else { "http" };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{}", self.address))
            .map_err(|error| bad(&error))?
            .user_agent(concat!("openclaw-rl-client-rust/", env!("CARGO_PKG_VERSION")))
            .map_err(|error| bad(&error))?
            .connect_timeout(self.connect_timeout)
            .http2_keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(10))
            .keep_alive_while_idle(true);
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            use tonic::transport::{Certificate, ClientTlsConfig, Identity};
            if !tls.authority.windows(CERTIFICATE.len()).any(|part| part == CERTIFICATE) {
                return Err(Error::invalid(
                    "tls",
                    "the CA's file has no certificate in it: must be PEM, such as ca.crt",
                ));
            }
            let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.authority));
            if let Some((certificate, key)) = &tls.identity {
                config = config
                    .identity(Identity::from_pem(certificate, key))
                    .domain_name(format!("{}.openclaw-rl.internal", C::ROLE.name()));
            }
            if let Some(name) = &tls.server_name {
                config = config.domain_name(name);
            }
            endpoint = endpoint
                .tls_config(config)
                .map_err(|error| Error::invalid("tls", format!("it can't be used: {}", chain(&error))))?;
        }
        if self.connect_timeout.is_zero() || self.deadline.is_zero() {
            return Err(Error::invalid("deadline", "0 is not allowed: must be longer"));
        }
        let first = FirstBytes::default();
        let connector = Connector { address: self.address.as_str().into(), first: first.clone() };
        Ok((endpoint, connector, first))
    }

    fn client(self, channel: Channel, first: FirstBytes) -> Result<C> {
        let bearer = match &self.key {
            None => None,
            Some(key) => {
                let mut value = MetadataValue::try_from(format!("Bearer {key}"))
                    .map_err(|_| Error::invalid("key", "it has characters that no key has"))?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        let encrypted = self.encrypted();
        Ok(C::from(Connection(Arc::new(Inner {
            expects: !self.mesh.id.is_empty(),
            transport: InterceptedService::new(Identified::new(channel, self.mesh)?, Bearer(bearer)),
            address: self.address,
            role: C::ROLE,
            encrypted,
            first,
            deadline: self.deadline,
            message_limit: self.message_limit,
            reconnect: self.reconnect,
        }))))
    }
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}
