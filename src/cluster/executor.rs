//! [`ExecutorServer`]: takes the calls of drivers.
//!
//! A thread of its own talks to them, whatever the session's threads do; these plan, and run tasks.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use datafusion::common::{DataFusionError, Result, exec_err, plan_err};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::credentials::{Credentials, Token};
use super::messages::{CALL_BYTES, Call, Connection, Hello, PROTOCOL, Reply, VERSION};
use super::queries::Queries;
use crate::dataset::DataContext;
use crate::error::one_message;
use crate::runtime::{Drivers, talking_runtime};
use crate::wire::{Address, Identity, Listener, Opening, SocketFile, Trust, read_line, read_line_within};

/// How long a connection may take to say what it is for.
const GREETING: Duration = Duration::from_secs(10);

/// Where and for whom an executor works.
#[derive(Clone, Default)]
pub struct ExecutorOptions {
    /// `unix:PATH`, a socket that nobody else may open, or `tls:IP:PORT` or `tcp:IP:PORT`, where port 0 takes a free
    /// one.
    pub listen: String,
    /// What drivers have to show. Needed for `tls:` and `tcp:`.
    pub token: Option<String>,
    /// Whether drivers on other machines may connect to `tcp:`. What is said there is not encrypted.
    pub insecure: bool,
    /// A file with the certificate that is shown at `tls:`, in PEM, with those that have signed it behind it.
    pub tls_cert: Option<PathBuf>,
    /// A file with its key, in PEM.
    pub tls_key: Option<PathBuf>,
    /// A file with the certificates, in PEM, that have signed those of other executors; if not said, those of
    /// [`tls_cert`](Self::tls_cert).
    pub tls_ca: Option<PathBuf>,
}

impl fmt::Debug for ExecutorOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecutorOptions").field("listen", &self.listen).finish_non_exhaustive()
    }
}

/// Runs stages of queries of other processes. Dropping it ends all of them.
#[derive(Debug)]
pub struct ExecutorServer {
    address: Address,
    executor: Arc<Executor>,
    // It goes with the server, though its thread may listen for a moment more.
    _file: Option<SocketFile>,
    _accepts: Drivers<()>,
}

impl ExecutorServer {
    /// Takes the stages of drivers, in the memory of a session, with its functions, and on the threads that this is
    /// called on.
    ///
    /// # Errors
    ///
    /// Where the address is none or taken, nothing says who may connect, or connections of other machines are not
    /// allowed.
    pub async fn bind(context: &DataContext, options: ExecutorOptions) -> Result<Self> {
        let address: Address = options.listen.parse()?;
        let (identity, trust) = encryption(&address, &options)?;
        let ExecutorOptions { token, insecure, .. } = options;
        let token = token.map(Token);
        if address.needs_key() && token.as_ref().is_none_or(|token| token.0.is_empty()) {
            let given = if token.is_some() { "the token is empty" } else { "there is none; see --token-file" };
            return plan_err!(
                "an executor at {address} needs a token, without which anybody could read files as it can: {given}"
            );
        }
        if !address.is_of_this_machine() && !address.is_encrypted() && !insecure {
            return plan_err!(
                "{address} can be reached from other machines, and what is said there is not encrypted; listen at tls:, \
                 say that it may be insecure, or listen at 127.0.0.1"
            );
        }
        let talks = talking_runtime()?;
        let (mut listener, address) = Drivers::on(talks, async move { address.listen(identity).await }).await?;
        let executor = Arc::new(Executor {
            token: token.clone().filter(|_| address.needs_key()),
            queries: Arc::new(Queries::new(
                context.clone(),
                Handle::current(),
                Credentials::new(token, insecure, trust),
            )),
        });
        let file = listener.take_file();
        let mut accepts = Drivers::none();
        accepts.spawn_on(talks, accept(listener, Arc::clone(&executor)));
        Ok(Self { address, executor, _file: file, _accepts: accepts })
    }

    /// Where drivers connect: with the port, where a free one was asked for.
    pub fn address(&self) -> String {
        self.address.to_string()
    }
}

impl Drop for ExecutorServer {
    fn drop(&mut self) {
        self.executor.queries.close();
    }
}

/// What the connections of an executor share.
#[derive(Debug)]
struct Executor {
    token: Option<Token>,
    queries: Arc<Queries>,
}

/// What an executor shows at an address, and whom it believes when it asks others.
fn encryption(address: &Address, options: &ExecutorOptions) -> Result<(Option<Identity>, Trust)> {
    let (certificate, authorities) = (options.tls_cert.as_deref(), options.tls_ca.as_deref());
    let identity = match (certificate, options.tls_key.as_deref()) {
        (Some(certificate), Some(key)) if address.is_encrypted() => Some(Identity::read(certificate, key)?),
        (None, None) if !address.is_encrypted() => None,
        _ if address.is_encrypted() => {
            return plan_err!("an executor at {address} needs a certificate and its key; see --tls-cert and --tls-key");
        }
        _ => return plan_err!("what is said at {address} is not encrypted: with a certificate, listen at tls:"),
    };
    let trust = authorities.or(certificate).map(Trust::read).transpose()?.unwrap_or_default();
    certificate.map_or(Ok(()), |certificate| trust.check(certificate, authorities.is_some()))?;
    Ok((identity, trust))
}

/// Takes connections, each in a driver of its own.
async fn accept(listener: Listener, executor: Arc<Executor>) -> Result<()> {
    let mut open = Drivers::<()>::none();
    loop {
        tokio::select! {
            // A connection that breaks is the driver's to notice.
            opening = listener.accept() => open.spawn(Arc::clone(&executor).serve(opening)),
            Some(_ended) = open.next() => {}
        }
    }
}

impl Executor {
    async fn serve(self: Arc<Self>, opening: Opening) -> Result<()> {
        let greeted = async {
            let mut connection = Connection::of(opening.await?);
            let call = self.greeted(&mut connection).await;
            Ok::<_, DataFusionError>((connection, call))
        };
        let (connection, call) = match timeout(GREETING, greeted).await {
            // Who does not agree on how to talk, or says nothing, is told nothing.
            Err(_) | Ok(Err(_) | Ok((_, Ok(None)))) => return Ok(()),
            Ok(Ok((connection, Ok(Some(call))))) => (connection, call),
            Ok(Ok((connection, Err(e)))) => return connection.refuse(&e).await,
        };
        match call {
            Call::Prepare(prepare) => self.queries.hold(connection, prepare).await,
            Call::Status => connection.say_last(&Reply::Status(self.queries.status())).await,
            Call::Run(run) => {
                let queries = Arc::clone(&self.queries);
                Drivers::on(self.queries.threads(), async move { queries.send(connection, run).await }).await
            }
            Call::Map(map) => {
                let queries = Arc::clone(&self.queries);
                Drivers::on(self.queries.threads(), async move { queries.map(connection, map).await }).await
            }
            Call::Fetch(fetch) => {
                let queries = Arc::clone(&self.queries);
                Drivers::on(self.queries.threads(), async move { queries.give(connection, fetch).await }).await
            }
            Call::See(see) => match self.queries.sees(&see).await {
                Ok(()) => connection.say_last(&Reply::Seen).await,
                Err(e) => connection.say_last(&Reply::Failed(one_message(&e))).await,
            },
        }
    }

    /// What a connection is for, if it may be.
    async fn greeted(&self, connection: &mut Connection) -> Result<Option<Call>> {
        let Some(hello) = read_line::<Hello>(&mut connection.read).await? else { return Ok(None) };
        if hello.protocol != PROTOCOL || hello.version != VERSION {
            return exec_err!("it is of version {VERSION}, and the driver of {}", hello.version);
        }
        if self.token.as_ref().is_some_and(|token| !hello.token.as_ref().is_some_and(|shown| is_same(token, shown))) {
            return match hello.token {
                Some(_) => {
                    exec_err!("the token is not the one that it was started with; see blockyard.cluster_token_file")
                }
                None => {
                    exec_err!("no token was shown; see blockyard.cluster_token_file, and --token-file of executors")
                }
            };
        }
        read_line_within(&mut connection.read, CALL_BYTES).await
    }
}

/// Whether two tokens are the same, in a time that does not tell how much of them is.
fn is_same(Token(one): &Token, Token(other): &Token) -> bool {
    let differences = one.bytes().zip(other.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
    one.len() == other.len() && differences == 0
}

impl Connection {
    async fn refuse(self, why: &DataFusionError) -> Result<()> {
        self.say_last(&Reply::Refused(one_message(why))).await
    }
}
