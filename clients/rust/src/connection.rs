use std::{fmt, sync::Arc, time::Duration};

use tonic::{
    Code, Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
};

use crate::{Error, Identified, Result, Role, wire::FirstBytes};

/// Puts the bearer key on each call.
#[derive(Clone)]
pub struct Bearer(pub(crate) Option<MetadataValue<Ascii>>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> std::result::Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}

/// What raw stubs are made over.
pub type Transport = InterceptedService<Identified, Bearer>;

/// A connection to one component. Clones share it; it connects again by itself after a break.
#[derive(Clone)]
pub struct Connection(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) transport: Transport,
    pub(crate) address: String,
    pub(crate) role: Role,
    pub(crate) encrypted: bool,
    pub(crate) first: FirstBytes,
    pub(crate) deadline: Duration,
    pub(crate) message_limit: usize,
    pub(crate) reconnect: bool,
    /// A mesh is expected there: nothing is sent to a stream before its headers.
    pub(crate) expects: bool,
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
pub(crate) fn unreachable(
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
    Error::new(code, crate::error::code_name(code), format!("{address}: {why} ({text})"))
}

/// An error with what caused it.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
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
