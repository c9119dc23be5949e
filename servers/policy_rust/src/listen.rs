//! Accepting connections, and letting go of those whose other side has gone silent.
use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{Stream, stream};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    time::{Instant, Sleep, sleep},
};
use tonic::transport::server::{Connected, TcpConnectInfo};

/// Who sends nothing for so long is not there any more: a living one answers the server's pings, which come more often.
/// It ends those, too, that never begin with TLS or HTTP/2, and would keep the server's files for themselves.
pub const SILENCE: Duration = Duration::from_secs(60);

/// gRPC's connections. Where there are too many, the next one waits until one has ended.
pub fn connections(listener: TcpListener, silence: Duration) -> impl Stream<Item = io::Result<Connection>> {
    stream::unfold(listener, move |listener| async move {
        loop {
            match listener.accept().await {
                Ok((tcp, _)) => {
                    let _ = tcp.set_nodelay(true); // gone already: reading tells
                    let sleep = Box::pin(sleep(silence));
                    return Some((Ok(Connection { tcp, silence, sleep }), listener));
                }
                Err(_) => sleep(Duration::from_millis(100)).await,
            }
        }
    })
}

pub struct Connection {
    tcp: TcpStream,
    silence: Duration,
    sleep: Pin<Box<Sleep>>,
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.tcp.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.tcp).poll_read(cx, buffer);
        if read.is_pending() {
            return self.sleep.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()));
        }
        let later = Instant::now() + self.silence;
        self.sleep.as_mut().reset(later);
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(cx, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

/// Listens where an option says, and tells where that is.
pub async fn bind(option: &str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), String> {
    let advice = "stop what uses it, or take another port (0 is any free one)";
    let failed = |error| format!("{option}: can't listen on {address}: {error}; {advice}");
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn who_says_nothing_is_let_go() {
        let (listener, address) = bind("--listen", "127.0.0.1:0".parse().unwrap()).await.unwrap();
        let mut connections = Box::pin(connections(listener, Duration::from_millis(300)));
        let mut other = TcpStream::connect(address).await.unwrap();
        let mut connection = connections.next().await.unwrap().unwrap();
        let mut buffer = [0; 8];
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(150)).await;
            other.write_all(b"alive").await.unwrap();
            assert_eq!(connection.read(&mut buffer).await.unwrap(), 5);
        }
        assert_eq!(connection.read(&mut buffer).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
