//! The TCP connection below a channel, which remembers how the other side began: an address that speaks HTTP/1, or
//! plain text where TLS is expected, gives errors that only its first bytes explain.
use std::{
    future::Future,
    io::{self, Read as _},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// Bytes that are enough to tell protocols from one another.
const ENOUGH: usize = 5;

/// The first bytes that came from the other side with the newest connection.
#[derive(Clone, Default)]
pub(crate) struct FirstBytes(Arc<Mutex<Vec<u8>>>);

impl FirstBytes {
    fn note(&self, bytes: &[u8]) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = ENOUGH.saturating_sub(known.len()).min(bytes.len());
        known.extend_from_slice(&bytes[..room]);
    }

    fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// What the other side speaks when it isn't what was expected, for a person.
    pub(crate) fn explain(&self, tls: bool) -> Option<&'static str> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Some answer with the page alone, as HTTP was in its beginnings.
        if known.starts_with(b"HTTP") || known.starts_with(b"<") {
            Some("speaks HTTP/1, not gRPC: the OpenAI door has another port than the gRPC services")
        } else if !tls && matches!(known.as_slice(), [0x15 | 0x16, 3, ..]) {
            Some("expects TLS, and this client speaks plain text: give it `tls` with the mesh's certificates")
        } else if tls && !known.is_empty() && !matches!(known.as_slice(), [0x14..=0x17, 3, ..]) {
            Some("speaks plain text, and this client TLS: connect without `tls`, or switch TLS on there")
        } else {
            None
        }
    }
}

/// Connects to one HOST:PORT.
#[derive(Clone)]
pub(crate) struct Connector {
    pub(crate) address: Arc<str>,
    pub(crate) first: FirstBytes,
}

impl tower_service::Service<http::Uri> for Connector {
    type Response = TokioIo<Wire>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        let Self { address, first } = self.clone();
        Box::pin(async move {
            let stream = TcpStream::connect(&*address).await?;
            stream.set_nodelay(true)?;
            first.clear();
            Ok(TokioIo::new(Wire { stream, first }))
        })
    }
}

/// A TCP stream whose first bytes are noted.
pub(crate) struct Wire {
    stream: TcpStream,
    first: FirstBytes,
}

impl Wire {
    /// Notes what came before a write failed: nobody reads a connection any more that can't be written to.
    fn note_unread(&self) {
        let mut bytes = [0; ENOUGH];
        if let Ok(n) = (&*SockRef::from(&self.stream)).read(&mut bytes) {
            self.first.note(&bytes[..n]);
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if polled.is_ready() {
            self.first.note(&buf.filled()[before..]);
        }
        polled
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Err(_)) = polled {
            self.note_unread();
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
