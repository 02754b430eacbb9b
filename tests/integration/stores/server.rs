//! A server that speaks S3, over a directory. It counts requests and answers some of them wrongly.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use s3s::Body;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

pub(crate) const KEY: &str = "a-key";
pub(crate) const SECRET: &str = "a-secret-that-must-not-show";

/// What is done in place of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// An answer with this status.
    Status(u16),
    /// The connection is closed.
    Reset,
    /// It is closed in the middle of the answer.
    Cut,
    /// Nothing comes.
    Hang,
    /// What was asked for is done, and the connection closed.
    LostAnswer,
}

type Faults = Box<dyn Fn(usize, &Request<Incoming>) -> Option<Fault> + Send + Sync>;

struct State {
    s3: S3Service,
    faults: Mutex<Faults>,
    requests: Mutex<Vec<String>>,
    served_faults: AtomicUsize,
    /// What is put under a condition is put one after the other: the server looks first, and writes then.
    conditions: tokio::sync::Mutex<()>,
}

/// A server, until it is dropped. A directory of its root is a bucket.
pub(crate) struct Server {
    pub(crate) endpoint: String,
    directory: TempDir,
    state: Arc<State>,
    stop: Option<oneshot::Sender<()>>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.endpoint)
    }
}

impl Server {
    /// With one bucket, which may be read by those who have the key; or by all.
    pub(crate) fn start(bucket: &str, public: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join(bucket)).unwrap();
        let mut builder = S3ServiceBuilder::new(s3s_fs::FileSystem::new(directory.path()).unwrap());
        if !public {
            builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
        }
        let faults: Faults = Box::new(|_, _| None);
        let state = State {
            s3: builder.build(),
            faults: Mutex::new(faults),
            requests: Mutex::default(),
            served_faults: AtomicUsize::default(),
            conditions: tokio::sync::Mutex::default(),
        };
        let state = Arc::new(state);
        let (send_address, address) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let served = Arc::clone(&state);
        #[expect(clippy::disallowed_methods, reason = "a server beside the tests")]
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                send_address.send(listener.local_addr().unwrap()).unwrap();
                tokio::select! {
                    () = serve(listener, served) => {}
                    _ = stopped => {}
                }
            });
        });
        let endpoint = format!("http://{}", address.recv().unwrap());
        Self { endpoint, directory, state, stop: Some(stop) }
    }

    /// The directory of a bucket.
    pub(crate) fn path(&self, bucket: &str) -> PathBuf {
        self.directory.path().join(bucket)
    }

    /// Which requests are answered wrongly from now on: by their number since then, and what they are.
    pub(crate) fn fail(&self, faults: impl Fn(usize, &Request<Incoming>) -> Option<Fault> + Send + Sync + 'static) {
        *self.state.faults.lock() = Box::new(faults);
        self.take_requests();
    }

    /// The requests since the last call: method and path.
    pub(crate) fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.state.requests.lock())
    }

    /// How many were answered wrongly.
    pub(crate) fn served_faults(&self) -> usize {
        self.state.served_faults.load(SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have stopped by itself.
        let _stopped = self.stop.take().map(|stop| stop.send(()));
    }
}

async fn serve(listener: TcpListener, state: Arc<State>) {
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let state = Arc::clone(&state);
        let answer = move |request: Request<Incoming>| {
            let state = Arc::clone(&state);
            async move { answer(&state, request).await }
        };
        // A connection that breaks off is what some tests want.
        #[expect(clippy::disallowed_methods, reason = "a server beside the tests")]
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(socket), service_fn(answer)));
    }
}

/// An error closes the connection.
async fn answer(state: &State, request: Request<Incoming>) -> Result<Response<Body>, std::io::Error> {
    let number = {
        let mut requests = state.requests.lock();
        let query = request.uri().query().map_or_else(String::new, |query| format!("?{query}"));
        requests.push(format!("{} {}{query}", request.method(), request.uri().path()));
        requests.len() - 1
    };
    let fault = state.faults.lock()(number, &request);
    if fault.is_some() {
        state.served_faults.fetch_add(1, SeqCst);
    }
    match fault {
        Some(Fault::Reset) => Err(std::io::Error::other("reset")),
        Some(Fault::Status(status)) => {
            let body = Body::from("a fault".to_owned());
            Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap()).map_err(|never| match never {})
        }
        Some(Fault::Hang) => std::future::pending().await,
        Some(Fault::LostAnswer) => {
            right(state, request).await?;
            Err(std::io::Error::other("lost"))
        }
        Some(Fault::Cut) => Ok(cut(right(state, request).await?).await),
        None => right(state, request).await,
    }
}

async fn right(state: &State, mut request: Request<Incoming>) -> Result<Response<Body>, std::io::Error> {
    // Google's client shows a token, of which S3 knows nothing.
    let shown = request.headers().get("authorization").and_then(|shown| shown.to_str().ok());
    if shown.is_some_and(|shown| shown.starts_with("Bearer")) {
        request.headers_mut().remove("authorization");
    }
    let is_conditional = ["if-match", "if-none-match"].iter().any(|name| request.headers().contains_key(*name));
    let _alone = match is_conditional {
        true => Some(state.conditions.lock().await),
        false => None,
    };
    let completes = request.method() == "POST" && request.uri().query().is_some_and(|q| q.starts_with("uploadId"));
    let mut answer =
        Service::call(&state.s3, request).await.map_err(|error| std::io::Error::other(format!("{error:?}")))?;
    // What has ended is not there any more, as S3 says.
    if completes && answer.status() == 403 {
        *answer.status_mut() = hyper::StatusCode::NOT_FOUND;
    }
    Ok(answer)
}

/// An answer that says how long it is, and then is not.
async fn cut(answer: Response<Body>) -> Response<Body> {
    let (mut head, body) = answer.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    head.headers.insert("content-length", bytes.len().into());
    let half = Ok(Frame::data(bytes.slice(..bytes.len() / 2)));
    let pieces = stream::iter([half, Err(std::io::Error::other("cut"))]);
    Response::from_parts(head, Body::http_body(StreamBody::new(pieces)))
}
