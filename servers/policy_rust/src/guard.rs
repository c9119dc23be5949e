//! What every call goes through: who calls and whether he may, its deadline, the end of the server, errors with details.
use std::{
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{body::Body, extract::Request, middleware::Next, response::Response};
use bytes::Bytes;
use http_body::Frame;
use openclaw_rl_client::{Code, Error};
use tokio::{
    sync::watch,
    time::{Instant, Sleep},
};
use tonic::{
    Status,
    transport::server::{TcpConnectInfo, TlsConnectInfo},
};

use crate::{membership::Membership, turns::too_late};

/// Who calls.
#[derive(Clone, Default)]
pub struct Caller {
    /// Role of the certificate; `None` where nobody has to show one, so that everybody may be it.
    pub role: Option<String>,
    pub address: String,
    pub key: String,
    pub deadline: Option<Instant>,
}

/// How far the server is on its way to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Serving,
    /// Watches and the weight stream end; responses go on.
    Draining,
    /// All ends.
    Ending,
}

#[derive(Clone)]
pub struct Guard {
    /// URI of the mesh that certificates must be of, such as `spiffe://MESH/`; `None` without TLS.
    pub mesh: Option<Arc<str>>,
    pub membership: Arc<Membership>,
    pub phase: watch::Receiver<Phase>,
}

/// Who calls, if he may.
fn enter(guard: &Guard, request: &Request) -> Result<Caller, Error> {
    let text = |name: &str| request.headers().get(name)?.to_str().ok();
    let timeout = text("grpc-timeout").and_then(timeout);
    let mut caller = Caller {
        address: address(request).map(|address| address.ip().to_string()).unwrap_or_default(),
        key: text("authorization").and_then(|text| text.strip_prefix("Bearer ")).unwrap_or_default().into(),
        deadline: timeout.map(|left| Instant::now() + left),
        ..Caller::default()
    };
    if let Some(mesh) = &guard.mesh {
        let role = role(request, mesh)?;
        allowed(&role, request.uri().path())?;
        caller.role = Some(role);
    }
    guard.membership.admit(request.headers(), request.uri().path(), guard.mesh.is_some())?;
    Ok(caller)
}

pub async fn check(guard: Guard, mut request: Request, next: Next) -> Response {
    let caller = match enter(&guard, &request) {
        Ok(caller) => caller,
        Err(error) => return error.to_status().into_http(),
    };
    let (method, deadline) = (request.uri().path().to_owned(), caller.deadline);
    request.extensions_mut().insert(caller);
    let response = match deadline {
        None => next.run(request).await,
        Some(at) => match tokio::time::timeout_at(at, next.run(request)).await {
            Ok(response) => response,
            Err(_) => return too_late().to_status().into_http(),
        },
    };
    let mut response = with_details(response);
    guard.membership.tell(response.headers_mut());
    if response.headers().contains_key("grpc-status") {
        return response; // it has ended
    }
    let last = match method.rsplit('/').next() {
        Some("Chat" | "Drain" | "GetStatus" | "SubmitFeedback" | "GetPolicy" | "ActivateVersion" | "Forget") => {
            Phase::Ending
        }
        _ if method.starts_with("/grpc.") => Phase::Ending,
        _ => Phase::Draining,
    };
    let mut phase = guard.phase;
    let ended = async move {
        if phase.wait_for(|now| *now >= last).await.is_err() {
            std::future::pending::<()>().await; // nobody is left to say so
        }
    };
    response.map(|body| {
        Body::new(Bounded {
            body: Some(body),
            deadline: deadline.map(|at| Box::pin(tokio::time::sleep_until(at))),
            ended: Box::pin(ended),
        })
    })
}

/// An answer's body, which ends with its call's deadline and with the server.
struct Bounded {
    body: Option<Body>,
    deadline: Option<Pin<Box<Sleep>>>,
    ended: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl http_body::Body for Bounded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        let late = self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready());
        let error = if late {
            too_late()
        } else if self.ended.as_mut().poll(cx).is_ready() {
            stopping()
        } else {
            return Poll::Pending;
        };
        self.body = None; // which cancels the work
        let mut trailers = http::HeaderMap::new();
        let _ = error.to_status().add_header(&mut trailers);
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }
}

/// What the streams that a stopping server ends are told.
fn stopping() -> Error {
    Error::unavailable("the policy server is stopping; connect again in a moment", Duration::from_secs(1))
}

/// Errors of the library below (unknown calls, messages that can't be read or are too large) get their details, too.
fn with_details(response: Response) -> Response {
    if response.headers().contains_key("grpc-status-details-bin") {
        return response;
    }
    match Status::from_header_map(response.headers()) {
        Some(status) if status.code() != Code::Ok => Error::from(status).to_status().into_http(),
        _ => response,
    }
}

/// Time of a `grpc-timeout` header.
fn timeout(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = number.parse().ok().filter(|_| number.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

fn address(request: &Request) -> Option<SocketAddr> {
    let extensions = request.extensions();
    let plain = || extensions.get::<TcpConnectInfo>()?.remote_addr();
    let secure = || extensions.get::<TlsConnectInfo<TcpConnectInfo>>()?.get_ref().remote_addr();
    plain().or_else(secure)
}

/// The role that the caller's certificate names: exactly one URI `spiffe://MESH/ROLE`.
fn role(request: &Request, mesh: &str) -> Result<String, Error> {
    let connection = request.extensions().get::<TlsConnectInfo<TcpConnectInfo>>();
    let certificates = connection.and_then(TlsConnectInfo::peer_certs).unwrap_or_default();
    let uris = certificates.first().map(|der| uris(der)).unwrap_or_default();
    match uris.as_slice() {
        [uri] if uri.starts_with(mesh) => Ok(uri[mesh.len()..].to_owned()),
        _ => Err(Error::new(
            Code::PermissionDenied,
            "FOREIGN_MESH",
            format!("the certificate is not of a role in this mesh ({mesh}ROLE): its URIs are {uris:?}"),
        )),
    }
}

/// The `spiffe://` URIs of a certificate, which TLS has checked.
pub fn uris(der: &rustls::pki_types::CertificateDer<'_>) -> Vec<String> {
    let names = webpki::EndEntityCert::try_from(der);
    let spiffe = |uri: &&str| uri.starts_with("spiffe://");
    names.map(|names| names.valid_uri_names().filter(spiffe).map(str::to_owned).collect()).unwrap_or_default()
}

/// SECURITY.md's table, as far as this component has the calls.
fn allowed(role: &str, method: &str) -> Result<(), Error> {
    const ALL: &[&str] = &["policy_server", "env_server", "prm_judge", "trainer", "operator"];
    let roles: &[&str] = match method.trim_start_matches("/openclaw_rl.v1.") {
        "PolicyService/Chat" | "PolicyService/SubmitFeedback" => &["env_server", "operator"],
        "PolicyService/Generate" | "PolicyService/Score" => &["env_server", "trainer", "operator"],
        "PolicyService/SyncWeights" => &["trainer"],
        "PolicyService/FetchWeights" => &["policy_server"],
        "PolicyService/ActivateVersion" => &["trainer", "operator"],
        "PolicyService/GetPolicy" | "PolicyService/WatchPolicy" => ALL,
        "ComponentService/GetStatus" | "ComponentService/WatchStats" => ALL,
        other if other.starts_with("ComponentService/") => &["operator"],
        other if other.starts_with("/grpc.") => ALL,
        // Closed like all that the table doesn't have; a newer client does without it.
        other => return Err(Error::new(Code::Unimplemented, "UNIMPLEMENTED", format!("there is no call {other}"))),
    };
    if roles.contains(&role) {
        return Ok(());
    }
    let call = method.rsplit('/').next().unwrap_or_default();
    let text = format!("{call} is for {}; the certificate says {role}", roles.join(", "));
    Err(Error::new(Code::PermissionDenied, "WRONG_ROLE", text).with_metadata("role", role))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_do_what() {
        assert!(allowed("trainer", "/openclaw_rl.v1.PolicyService/SyncWeights").is_ok());
        assert!(allowed("operator", "/openclaw_rl.v1.PolicyService/SyncWeights").is_err());
        assert!(allowed("prm_judge", "/grpc.health.v1.Health/Check").is_ok());
        assert!(allowed("trainer", "/openclaw_rl.v1.ComponentService/Drain").is_err());
        let unknown = allowed("operator", "/openclaw_rl.v1.PolicyService/NoSuchCall").unwrap_err();
        assert_eq!(unknown.code(), Code::Unimplemented);
    }

    #[test]
    fn deadlines_are_read() {
        assert_eq!(timeout("600m"), Some(Duration::from_millis(600)));
        assert_eq!(timeout("2S"), Some(Duration::from_secs(2)));
        for bad in ["", "m", "1x", "123456789S", "ü"] {
            assert_eq!(timeout(bad), None, "{bad}");
        }
    }
}
