use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_core::Stream;
use tokio::{
    sync::mpsc,
    task::{JoinHandle, JoinSet},
    time::{Instant, Sleep},
};
use tonic::{Code, Response, Status, Streaming};

use crate::{Connection, Error, Result};

/// The answers of a call, as a [`Stream`] or by [`next`](Self::next). Dropping it cancels the call at the server.
pub struct Answers<T> {
    inner: Pin<Box<dyn Stream<Item = std::result::Result<T, Status>> + Send>>,
    connection: Connection,
    deadline: Option<Pin<Box<Sleep>>>,
    done: bool,
}

impl<T: Send + 'static> Answers<T> {
    /// Wraps what a raw stub gives.
    pub(crate) fn new(connection: &Connection, inner: Streaming<T>, deadline: Option<Instant>) -> Self {
        Self {
            inner: Box::pin(inner),
            connection: connection.clone(),
            deadline: deadline.map(|at| Box::pin(tokio::time::sleep_until(at))),
            done: false,
        }
    }

    /// The next answer; `None` at the end. After an error there is no further one.
    pub async fn next(&mut self) -> Option<Result<T>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl<T: 'static> Stream for Answers<T> {
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.done {
            return Poll::Ready(None);
        }
        let answer = match self.inner.as_mut().poll_next(cx) {
            Poll::Ready(answer) => answer.map(|a| a.map_err(|status| self.connection.error(status))),
            Poll::Pending => match self.deadline.as_mut().map(|sleep| sleep.as_mut().poll(cx)) {
                Some(Poll::Ready(())) => {
                    Some(Err(Error::new(Code::DeadlineExceeded, "DEADLINE_EXCEEDED", "the deadline has passed")))
                }
                _ => return Poll::Pending,
            },
        };
        if !matches!(answer, Some(Ok(_))) {
            self.done = true;
            self.inner = Box::pin(tokio_stream::empty()); // lets go of the call
        }
        Poll::Ready(answer)
    }
}

/// Both directions of a call. What is sent waits for the server's response headers where they have to name the mesh, and
/// for nothing otherwise: some servers give them with their first answer only. Dropping it cancels the call.
pub struct Dialogue<Q, A> {
    connection: Connection,
    requests: Option<mpsc::Sender<Q>>,
    opened: Arc<AtomicBool>,
    answers: mpsc::Receiver<Result<A>>,
    _task: AbortOnDrop,
}

impl<Q: prost::Message + 'static, A: Send + 'static> Dialogue<Q, A> {
    /// Opens a call, such as `|requests| stub.interact(requests)`.
    pub(crate) fn open<F, R>(connection: &Connection, open: F) -> Self
    where
        F: FnOnce(tokio_stream::wrappers::ReceiverStream<Q>) -> R,
        R: Future<Output = std::result::Result<Response<Streaming<A>>, Status>> + Send + 'static,
    {
        let (requests, mut held) = mpsc::channel(16);
        let (incoming, answers) = mpsc::channel(16);
        let (release, outgoing) = if connection.0.expects {
            let (release, outgoing) = mpsc::channel(1);
            (Some(release), outgoing)
        } else {
            (None, std::mem::replace(&mut held, mpsc::channel(1).1))
        };
        let call = open(tokio_stream::wrappers::ReceiverStream::new(outgoing));
        let (owner, connection) = (connection.clone(), connection.clone());
        let opened = Arc::new(AtomicBool::new(false));
        let answered = Arc::clone(&opened);
        let task = tokio::spawn(async move {
            let mut stream = match call.await {
                Ok(response) => {
                    answered.store(true, Ordering::Relaxed);
                    response.into_inner()
                }
                Err(status) => {
                    let _ = incoming.send(Err(connection.error(status))).await;
                    return;
                }
            };
            let read = async {
                loop {
                    let answer = match stream.message().await {
                        Ok(Some(answer)) => Ok(answer),
                        Ok(None) => return,
                        Err(status) => Err(connection.error(status)),
                    };
                    let last = answer.is_err();
                    if incoming.send(answer).await.is_err() || last {
                        return;
                    }
                }
            };
            let pass_on = async {
                if let Some(release) = release {
                    while let Some(request) = held.recv().await {
                        if release.send(request).await.is_err() {
                            break;
                        }
                    }
                } // which ends the requests; answers may still come
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = read => {}
                () = pass_on => {}
            }
        });
        Self { connection: owner, requests: Some(requests), opened, answers, _task: AbortOnDrop(task) }
    }

    /// Becomes true when the server has answered for the first time, if only by its headers.
    pub(crate) fn opened(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.opened)
    }

    /// Where requests go in; `None` after `finish`.
    pub(crate) fn sender(&self) -> Option<mpsc::Sender<Q>> {
        self.requests.clone()
    }

    /// Sends a request; waits while the server reads slowly.
    ///
    /// # Errors
    /// The call has ended, [`next`](Self::next) tells why; or the message is larger than the limit.
    pub async fn send(&self, request: Q) -> Result<()> {
        self.connection.fits(&request)?;
        let ended = || Error::new(Code::Cancelled, "CANCELLED", "the call has ended");
        self.requests.as_ref().ok_or_else(ended)?.send(request).await.map_err(|_| ended())
    }

    /// Says that no further request comes.
    pub fn finish(&mut self) {
        self.requests = None;
    }

    /// The next answer; `None` at the end.
    pub async fn next(&mut self) -> Option<Result<A>> {
        self.answers.recv().await
    }
}

/// Ends a task with its owner.
pub(crate) struct AbortOnDrop(pub(crate) JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A watch: it begins anew by itself when its stream breaks, with growing pauses, and ends when it is dropped.
///
/// An error that a repetition does not cure (a wrong key, a service that isn't there) is given, and ends it.
pub struct Watch<T> {
    answers: mpsc::Receiver<Result<T>>,
    _task: JoinSet<()>,
}

impl<T: Send + 'static> Watch<T> {
    pub(crate) fn new<F, R>(connection: &Connection, mut open: F) -> Self
    where
        F: FnMut() -> R + Send + 'static,
        R: Future<Output = Result<Answers<T>>> + Send,
    {
        let (sender, answers) = mpsc::channel(16);
        let again = connection.reconnects();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut pauses = Pauses::default();
            loop {
                let error = match open().await {
                    Err(error) => Some(error),
                    Ok(mut stream) => loop {
                        match stream.next().await {
                            Some(Ok(answer)) => {
                                pauses = Pauses::default();
                                if sender.send(Ok(answer)).await.is_err() {
                                    return;
                                }
                            }
                            Some(Err(error)) => break Some(error),
                            None => break None,
                        }
                    },
                };
                match error {
                    Some(error) if !again || !passes(&error) => {
                        let _ = sender.send(Err(error)).await;
                        return;
                    }
                    None if !again => return,
                    error => {
                        let pause = pauses.after(error.as_ref());
                        tokio::select! {
                            () = sender.closed() => return,
                            () = tokio::time::sleep(pause) => {}
                        }
                    }
                }
            }
        });
        Self { answers, _task: task }
    }

    /// The next answer.
    pub async fn next(&mut self) -> Option<Result<T>> {
        self.answers.recv().await
    }
}

impl<T> Stream for Watch<T> {
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.answers.poll_recv(cx)
    }
}

/// Whether a stream that ended with this is worth opening again.
pub(crate) fn passes(error: &Error) -> bool {
    error.retryable()
        || matches!(error.code(), Code::Unknown | Code::Internal | Code::Cancelled | Code::DeadlineExceeded)
}

/// Growing pauses: 0.1 s to 5 s, a little uneven, so that many clients don't come back together.
#[derive(Default)]
pub(crate) struct Pauses(u32);

impl Pauses {
    /// The next one, at least as long as the server asked for.
    pub(crate) fn after(&mut self, error: Option<&Error>) -> Duration {
        let whole = Duration::from_millis(100 << self.0.min(6)).min(Duration::from_secs(5));
        self.0 += 1;
        let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.subsec_nanos());
        let uneven = whole.mul_f64(0.8 + 0.2 * f64::from(nanos % 1000) / 1000.0);
        uneven.max(error.and_then(Error::retry_after).unwrap_or_default())
    }
}
