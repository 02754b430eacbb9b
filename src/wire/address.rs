//! Where a process listens: a Unix socket, or a port.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err, plan_err};
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};

use super::duplex::Duplex;
use super::tls::{Identity, Trust, is_of_certificate};

/// A connection that there is, as soon as both sides have agreed on how to talk.
pub(crate) type Opening = BoxFuture<'static, Result<Box<dyn Duplex>>>;

/// After so long without a word a machine is asked whether it is still there, so often in such a time.
const SILENCE: Duration = Duration::from_secs(5);
const ASKED_AGAIN: Duration = Duration::from_secs(3);
const ASKED: u32 = 3;

/// After so long a connection is taken that could not be.
const TRIED_AGAIN: Duration = Duration::from_millis(50);

/// Connections that may wait to be accepted.
#[cfg(unix)]
const BACKLOG: u32 = 128;

/// Where a process listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Unix(PathBuf),
    /// A host, by its name or number, and a port.
    Tcp(String),
    /// The same, where what is said is encrypted.
    Tls(String),
}

impl FromStr for Address {
    type Err = DataFusionError;

    fn from_str(text: &str) -> Result<Self> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        let (kind, address) = match text.split_once(':') {
            Some((kind @ ("tcp" | "tls"), address)) => (kind, address),
            _ => return plan_err!("an address is unix:PATH, tcp:HOST:PORT or tls:HOST:PORT, got '{text}'"),
        };
        // What certificates are asked for is the host as it is said.
        let port = address.strip_prefix("localhost:").filter(|_| kind == "tcp");
        let address = port.map_or(address.to_owned(), |port| format!("127.0.0.1:{port}"));
        let is_host = |host: &str| match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').is_some_and(|host| host.parse::<Ipv6Addr>().is_ok()),
            None => !host.is_empty() && !host.contains([':', '/', ' ', '@']),
        };
        match address.rsplit_once(':') {
            Some((host, port)) if is_host(host) && port.parse::<u16>().is_ok() => Ok(match kind {
                "tls" => Self::Tls(address),
                _ => Self::Tcp(address),
            }),
            _ => plan_err!("an address is {kind}:HOST:PORT, like {kind}:127.0.0.1:0, got '{kind}:{address}'"),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
            Self::Tls(address) => write!(f, "tls:{address}"),
        }
    }
}

impl Address {
    /// Whether nobody reaches it but from this machine.
    pub(crate) fn is_of_this_machine(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            // What a name stands for is found out when it is used.
            Self::Tcp(address) | Self::Tls(address) => {
                address.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback())
            }
        }
    }

    /// Whether whoever reaches it has to show that it may.
    pub(crate) fn needs_key(&self) -> bool {
        !matches!(self, Self::Unix(_))
    }

    /// Whether what is said there is encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Connects. Where what is said is encrypted, the other side then has to show a certificate of this host.
    pub(crate) async fn connect(&self, trust: &Trust) -> Result<Opening> {
        let failed = |e: std::io::Error| exec_datafusion_err!("cannot connect to {self}: {e}");
        match self {
            #[cfg(unix)]
            Self::Unix(path) => Ok(open(tokio::net::UnixStream::connect(path).await.map_err(failed)?)),
            #[cfg(not(unix))]
            Self::Unix(_) => exec_err!("{self}: there are no such sockets on this system"),
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address).await.map_err(failed)?;
                watched(&stream)?;
                Ok(open(stream))
            }
            Self::Tls(address) => {
                let stream = TcpStream::connect(address).await.map_err(failed)?;
                watched(&stream)?;
                // The port is a number, so the host is what is before it.
                let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
                let (here, talking) = (self.clone(), trust.talk(host.trim_matches(['[', ']']), stream));
                let opening = async move {
                    talking.await.map_err(|e| {
                        let text = format!("cannot connect to {here}: {e}");
                        match is_of_certificate(&e) {
                            true => DataFusionError::External(Box::new(Distrust(text))),
                            false => exec_datafusion_err!("{text}"),
                        }
                    })
                };
                Ok(opening.boxed())
            }
        }
    }

    /// Takes connections, and the address at which it does. Where what is said is encrypted, it shows its identity.
    pub(crate) async fn listen(&self, identity: Option<Identity>) -> Result<(Listener, Self)> {
        let failed = |e: std::io::Error| exec_datafusion_err!("cannot listen at {self}: {e}");
        match self {
            Self::Unix(path) => Ok((Listener::unix(path).await?, self.clone())),
            Self::Tcp(address) => {
                let listener = TcpListener::bind(address).await.map_err(failed)?;
                let bound = listener.local_addr().map_err(failed)?;
                Ok((Listener::Tcp(listener), Self::Tcp(bound.to_string())))
            }
            Self::Tls(address) => {
                let Some(identity) = identity else {
                    return plan_err!("whoever listens at {self} needs a certificate and its key");
                };
                let listener = TcpListener::bind(address).await.map_err(failed)?;
                let bound = listener.local_addr().map_err(failed)?;
                Ok((Listener::Tls(listener, identity), Self::Tls(bound.to_string())))
            }
        }
    }
}

/// A connection on which nothing has to be agreed on.
fn open(stream: impl Duplex + 'static) -> Opening {
    ready(Ok(Box::new(stream) as Box<dyn Duplex>)).boxed()
}

/// The certificate of the other side is not believed.
#[derive(Debug)]
struct Distrust(String);

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Distrust {}

/// Whether a connection could not be made because the certificate of the other side is not believed.
pub(crate) fn is_distrust(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::External(e) if e.is::<Distrust>())
}

/// Bytes go at once, and a machine at the other end that is gone is found out.
fn watched(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let alive = TcpKeepalive::new().with_time(SILENCE).with_interval(ASKED_AGAIN).with_retries(ASKED);
    let socket = SockRef::from(stream);
    // Nobody is asked whether it is there as long as it has not taken what was sent.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(SILENCE + ASKED_AGAIN * ASKED))?;
    socket.set_tcp_keepalive(&alive)
}

/// Takes connections.
#[derive(Debug)]
pub(crate) enum Listener {
    #[cfg(unix)]
    Unix {
        listener: tokio::net::UnixListener,
        file: Option<SocketFile>,
    },
    Tcp(TcpListener),
    Tls(TcpListener, Identity),
}

impl Listener {
    /// A socket that nobody else may open, from its first moment on.
    #[cfg(unix)]
    async fn unix(path: &Path) -> Result<Self> {
        use std::os::unix::fs::{FileTypeExt, PermissionsExt};
        let failed = |e: std::io::Error| exec_datafusion_err!("cannot listen at unix:{}: {e}", path.display());
        if let Ok(there) = std::fs::symlink_metadata(path) {
            let is_abandoned = there.file_type().is_socket()
                && tokio::net::UnixStream::connect(path)
                    .await
                    .is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused);
            if !is_abandoned {
                return exec_err!("cannot listen at unix:{}: there is something already", path.display());
            }
            std::fs::remove_file(path).map_err(failed)?;
        }
        let socket = tokio::net::UnixSocket::new_stream().map_err(failed)?;
        socket.bind(path).map_err(failed)?;
        // Nobody can connect before it listens.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        let file = SocketFile::of(path).map_err(failed)?;
        Ok(Self::Unix { listener: socket.listen(BACKLOG).map_err(failed)?, file: Some(file) })
    }

    #[cfg(not(unix))]
    async fn unix(path: &Path) -> Result<Self> {
        exec_err!("unix:{}: there are no such sockets on this system", path.display())
    }

    /// The file of the socket, if it has one, for whoever ends before what listens does.
    pub(crate) fn take_file(&mut self) -> Option<SocketFile> {
        match self {
            #[cfg(unix)]
            Self::Unix { file, .. } => file.take(),
            Self::Tcp(_) | Self::Tls(..) => None,
        }
    }

    /// The next connection. Where none can be taken, as without file descriptors, this is tried again.
    pub(crate) async fn accept(&self) -> Opening {
        loop {
            match self.try_accept().await {
                Ok(opening) => return opening,
                Err(_) => tokio::time::sleep(TRIED_AGAIN).await,
            }
        }
    }

    async fn try_accept(&self) -> std::io::Result<Opening> {
        match self {
            #[cfg(unix)]
            Self::Unix { listener, .. } => Ok(open(listener.accept().await?.0)),
            Self::Tcp(listener) => {
                let stream = listener.accept().await?.0;
                watched(&stream)?;
                Ok(open(stream))
            }
            Self::Tls(listener, identity) => {
                let stream = listener.accept().await?.0;
                watched(&stream)?;
                let talking = identity.talk(stream);
                Ok(async move { Ok(talking.await?) }.boxed())
            }
        }
    }
}

/// The file of a socket, which goes with it: unless another process listens there by now, with a file of its own.
#[derive(Debug)]
pub(crate) struct SocketFile {
    #[cfg(unix)]
    path: PathBuf,
    /// Device and number.
    #[cfg(unix)]
    identity: (u64, u64),
}

#[cfg(unix)]
impl SocketFile {
    fn of(path: &Path) -> std::io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: Self::identity_of(path)? })
    }

    fn identity_of(path: &Path) -> std::io::Result<(u64, u64)> {
        use std::os::unix::fs::MetadataExt;
        let there = std::fs::symlink_metadata(path)?;
        Ok((there.dev(), there.ino()))
    }
}

#[cfg(unix)]
impl Drop for SocketFile {
    fn drop(&mut self) {
        if Self::identity_of(&self.path).is_ok_and(|there| there == self.identity) {
            let _removed = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[tokio::test]
    async fn the_socket_of_another_process_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (path, moved) = (directory.path().join("s"), directory.path().join("t"));
        let address = Address::Unix(path.clone());
        let (first, _) = address.listen(None).await.unwrap();
        std::fs::rename(&path, &moved).unwrap();
        let (second, _) = address.listen(None).await.unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists() && moved.exists());
    }

    #[test]
    fn addresses_are_sockets_and_ports() {
        let address = |text: &str| text.parse::<Address>().map(|address| address.to_string());
        assert_eq!(address("unix:/tmp/s").unwrap(), "unix:/tmp/s");
        assert_eq!(address("tcp:localhost:0").unwrap(), "tcp:127.0.0.1:0");
        assert_eq!(address("tcp:[::1]:80").unwrap(), "tcp:[::1]:80");
        assert!(!"tcp:10.0.0.1:80".parse::<Address>().unwrap().is_of_this_machine());
        assert_eq!(address("tcp:node-1.example:80").unwrap(), "tcp:node-1.example:80");
        assert!(!"tcp:node-1.example:80".parse::<Address>().unwrap().is_of_this_machine());
        assert_eq!(address("tls:node-1.example:80").unwrap(), "tls:node-1.example:80");
        assert_eq!(address("tls:localhost:80").unwrap(), "tls:localhost:80");
        for text in
            ["", "unix:", "tcp:127.0.0.1", "tcp:a:99999", "tcp::80", "tcp:::1:80", "tcp:http://a:80", "tcp:a b:80"]
        {
            let error = address(text).unwrap_err().to_string();
            assert!(error.contains("tcp:HOST:PORT"), "{error}");
        }
        assert!(address("tls:127.0.0.1").unwrap_err().to_string().contains("tls:HOST:PORT"));
    }
}
