//! Requests run on threads of their own, which decoding does not hold up, within the limit of their store. A server
//! that sends nothing for long is as good as none; one that sends slowly is waited for.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::common::Result;
use futures::StreamExt;
use http_body::{Body, Frame, SizeHint};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
    ReqwestConnector,
};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::traffic::{Traffic, UnderWay};
use crate::runtime::{OnHandle, requests_runtime};

/// Pieces of a body that lie ready. They have some 16 KiB each.
const PIECES_AHEAD: usize = 64;

/// Makes the clients of a store.
#[derive(Debug, Clone)]
pub(super) struct Requests {
    traffic: Arc<Traffic>,
    read_timeout: Duration,
    /// What to say where it cannot be found out who asks.
    advice: &'static str,
    runtime: &'static Handle,
}

impl Requests {
    /// Requests that count in `traffic`.
    pub(super) fn new(traffic: Arc<Traffic>, read_timeout: Duration, advice: &'static str) -> Result<Self> {
        Ok(Self { traffic, read_timeout, advice, runtime: requests_runtime()? })
    }
}

impl HttpConnector for Requests {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Client { client, requests: self.clone() }))
    }
}

#[derive(Debug)]
struct Client {
    client: HttpClient,
    requests: Requests,
}

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let asks_the_machine = request.uri().host().is_some_and(|host| MACHINE.contains(&host));
        let under_way = self.requests.traffic.enter().await;
        let (head, answered) = oneshot::channel();
        let (pieces, body) = mpsc::channel(PIECES_AHEAD);
        let exchange = exchange(self.client.clone(), request, self.requests.read_timeout, under_way, head, pieces);
        let running = OnHandle::spawn(self.requests.runtime, exchange);
        let answer = answered.await.map_err(|_| error(HttpErrorKind::Interrupted, "the request was given up"))?;
        match answer {
            Ok((head, length)) => {
                let body = Pieces { body, length, ended: false, _running: running };
                Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)))
            }
            Err(_) if asks_the_machine && !self.requests.advice.is_empty() => {
                Err(error(HttpErrorKind::Unknown, self.requests.advice))
            }
            Err(e) => Err(e),
        }
    }
}

/// Who is asked for credentials where none are given: the machine that it runs on.
const MACHINE: [&str; 2] = ["169.254.169.254", "metadata.google.internal"];

type Answer = std::result::Result<(http::response::Parts, Option<u64>), HttpError>;
/// A part of a body, or none behind its last one.
type Piece = std::result::Result<Option<Bytes>, HttpError>;

/// Makes a request, and gives away what comes back as fast as it is taken.
async fn exchange(
    client: HttpClient,
    request: HttpRequest,
    read_timeout: Duration,
    under_way: UnderWay,
    head: oneshot::Sender<Answer>,
    pieces: mpsc::Sender<Piece>,
) {
    let counts = under_way.counts();
    counts.sent_bytes.fetch_add(request.body().content_length() as u64, Relaxed);
    let late = || error(HttpErrorKind::Timeout, &format!("timed out: nothing came for {read_timeout:?}"));
    let answer = timeout(read_timeout, client.execute(request)).await.unwrap_or_else(|_| Err(late()));
    let response = match answer {
        Ok(response) => response,
        Err(e) => {
            counts.failed.fetch_add(1, Relaxed);
            // Nobody may wait for it any more.
            let _gone = head.send(Err(e));
            return;
        }
    };
    let status = response.status().as_u16();
    match status {
        429 | 503 => under_way.was_refused(),
        _ => under_way.was_answered(),
    }
    if status == 429 || status >= 500 {
        counts.failed.fetch_add(1, Relaxed);
    }
    let (parts, body) = response.into_parts();
    let length = parts.headers.get("content-length").and_then(|length| length.to_str().ok()?.parse().ok());
    if head.send(Ok((parts, length))).is_err() {
        return;
    }
    let mut body = body.bytes_stream();
    loop {
        let piece = match timeout(read_timeout, body.next()).await {
            Ok(piece) => piece.transpose(),
            Err(_) => Err(late()),
        };
        let goes_on = match &piece {
            Ok(Some(bytes)) => {
                counts.received_bytes.fetch_add(bytes.len() as u64, Relaxed);
                true
            }
            Ok(None) => false,
            Err(_) => {
                counts.failed.fetch_add(1, Relaxed);
                false
            }
        };
        if pieces.send(piece).await.is_err() || !goes_on {
            return;
        }
    }
}

fn error(kind: HttpErrorKind, text: &str) -> HttpError {
    HttpError::new(kind, std::io::Error::other(text.to_owned()))
}

/// The body of a response. Dropping it ends the request.
struct Pieces {
    body: mpsc::Receiver<Piece>,
    length: Option<u64>,
    ended: bool,
    _running: OnHandle,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, HttpError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        self.body.poll_recv(context).map(|piece| match piece {
            Some(Ok(Some(bytes))) => Some(Ok(Frame::data(bytes))),
            Some(Ok(None)) => {
                self.ended = true;
                None
            }
            Some(Err(e)) => Some(Err(e)),
            None => Some(Err(error(HttpErrorKind::Interrupted, "the request was given up"))),
        })
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
