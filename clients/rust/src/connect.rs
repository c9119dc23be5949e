use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

use tonic::{
    Code, Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint},
};

use crate::{
    Error, Result,
    wire::{Connector, FirstBytes},
};

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

/// How a connection is encrypted, and who this side is.
#[cfg(feature = "tls")]
#[derive(Clone)]
pub struct Tls {
    authority: Vec<u8>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
    server_name: Option<String>,
}

#[cfg(feature = "tls")]
impl Tls {
    /// Trusts the CA (PEM of the mesh's `ca.crt`). The server is expected under the name of its host.
    pub fn new(authority: impl Into<Vec<u8>>) -> Self {
        Self {
            authority: authority.into(),
            identity: None,
            server_name: None,
        }
    }

    /// Shows a certificate (PEM). The server is then expected under the mesh's own name of its role.
    pub fn identity(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.identity = Some((certificate.into(), key.into()));
        self
    }

    /// The name that the server's certificate must have, in place of the usual one.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Reads `ca.crt`, `ROLE.crt` and `ROLE.key` of a folder, such as `certs/` of the mesh's home with role `operator`.
    ///
    /// # Errors
    /// A file can't be read; the text names it.
    pub fn from_folder(folder: impl AsRef<std::path::Path>, role: &str) -> Result<Self> {
        let read = |name: String| {
            let path = folder.as_ref().join(name);
            std::fs::read(&path)
                .map_err(|error| Error::invalid("tls", format!("{} can't be read: {error}", path.display())))
        };
        Ok(Self::new(read("ca.crt".into())?).identity(read(format!("{role}.crt"))?, read(format!("{role}.key"))?))
    }
}

#[cfg(feature = "tls")]
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("identity", &self.identity.is_some())
            .field("server_name", &self.server_name)
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "tls")]
const CERTIFICATE: &[u8] = b"-----BEGIN CERTIFICATE-----";

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
            Err(error) => Err(unreachable(
                &self.address,
                self.encrypted(),
                &seen,
                &error,
                Code::Unavailable,
            )),
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
            Error::invalid(
                "address",
                format!("{address:?} is not allowed: must be HOST:PORT ({problem})"),
            )
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
        let connector = Connector {
            address: self.address.as_str().into(),
            first: first.clone(),
        };
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
            transport: InterceptedService::new(channel, Bearer(bearer)),
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

/// Puts the bearer key on each call.
#[derive(Clone)]
pub struct Bearer(Option<MetadataValue<Ascii>>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> std::result::Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}

/// What raw stubs are made over.
pub type Transport = InterceptedService<Channel, Bearer>;

/// A connection to one component. Clones share it; it connects again by itself after a break.
#[derive(Clone)]
pub struct Connection(Arc<Inner>);

struct Inner {
    transport: Transport,
    address: String,
    role: Role,
    encrypted: bool,
    first: FirstBytes,
    deadline: Duration,
    message_limit: usize,
    reconnect: bool,
}

impl Connection {
    /// HOST:PORT.
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// The component that is expected there.
    pub fn role(&self) -> Role {
        self.0.role
    }

    /// For stubs of your own: `PolicyServiceClient::new(connection.transport())`.
    pub fn transport(&self) -> Transport {
        self.0.transport.clone()
    }

    /// Bytes of the largest message, in either direction.
    pub fn message_limit(&self) -> usize {
        self.0.message_limit
    }

    pub(crate) fn reconnects(&self) -> bool {
        self.0.reconnect
    }

    /// A request with the connection's deadline.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED`: the message is larger than the limit.
    pub fn request<T: prost::Message>(&self, message: T) -> Result<Request<T>> {
        self.patient(message, Duration::ZERO)
    }

    /// The same with a deadline of its own, `extra` longer than the connection's.
    pub(crate) fn patient<T: prost::Message>(&self, message: T, extra: Duration) -> Result<Request<T>> {
        self.fits(&message)?;
        let mut request = Request::new(message);
        request.set_timeout(self.0.deadline + extra);
        Ok(request)
    }

    /// Whether a message may be sent: tonic's own check breaks the call with words that say nothing of it.
    pub(crate) fn fits(&self, message: &impl prost::Message) -> Result<()> {
        let (size, most) = (message.encoded_len(), self.0.message_limit);
        if size <= most {
            return Ok(());
        }
        let text = format!(
            "the request has {size} bytes, at most {most} are allowed; send less, or raise the client's \
             `message_limit` and the server's limit"
        );
        Err(Error::new(Code::ResourceExhausted, "RESOURCE_EXHAUSTED", text))
    }

    /// What a raw stub's status means, with the address in the words where the server did not speak itself.
    pub fn error(&self, status: Status) -> Error {
        let inner = &*self.0;
        if let Some(source) = std::error::Error::source(&status)
            && status.code() != Code::Cancelled
        {
            return unreachable(&inner.address, inner.encrypted, &inner.first, source, status.code());
        }
        let error = Error::from(status);
        if error.code() == Code::Unimplemented && error.reason() == "UNIMPLEMENTED" && error.metadata().is_empty() {
            let text = format!(
                "{} does not serve this call ({}): it is an older component, or another one than {}; `check` tells",
                inner.address,
                error.message(),
                inner.role.name()
            );
            return error.with_message(text);
        }
        if error.code() == Code::DeadlineExceeded {
            let text = format!("{}: {} before it answered", inner.address, error.message());
            return error.with_message(text);
        }
        error
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({} at {})", self.0.role.name(), self.0.address)
    }
}

/// A connection that did not come about or broke, in words that help.
fn unreachable(
    address: &str,
    encrypted: bool,
    first: &FirstBytes,
    error: &(dyn std::error::Error + 'static),
    code: Code,
) -> Error {
    let text = chain(error);
    if let Some(why) = first.explain(encrypted) {
        return Error::new(Code::Unavailable, "UNAVAILABLE", format!("{address} {why} ({text})"));
    }
    let low = text.to_lowercase();
    let why = if low.contains("connection refused") {
        "nothing listens there: start the mesh, or check the address"
    } else if low.contains("notvalidforname") || low.contains("not valid for name") {
        "its certificate is that of another component or host than was expected there: check the address"
    } else if low.contains("certificaterequired") || low.contains("certificate required") {
        "it wants a certificate of the mesh from this side: give `tls` an identity"
    } else if low.contains("invalid peer certificate") || low.contains("unknownca") {
        "its certificate is not of this CA, or out of date, or this side's is not taken there"
    } else if low.contains("http2 error") || low.contains("connection closed") || low.contains("broken pipe") {
        "the connection broke: the component has ended, or it speaks another protocol (or TLS) at this port"
    } else if low.contains("lookup address") {
        "there is no host of this name"
    } else {
        "it can't be reached"
    };
    let code = if code == Code::Unknown { Code::Unavailable } else { code };
    Error::new(
        code,
        crate::error::code_name(code),
        format!("{address}: {why} ({text})"),
    )
}

/// An error with what caused it.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        if !parts.iter().any(|part| part.contains(&text)) {
            parts.push(text);
        }
        next = error.source();
    }
    parts.join(": ")
}
