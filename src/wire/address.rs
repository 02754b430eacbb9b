//! Where a process listens: a Unix socket, or a port.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err, plan_err};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

/// Bytes that come and go.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// After so long without a word a machine is asked whether it is still there, so often in such a time.
const SILENCE: Duration = Duration::from_secs(5);
const ASKED_AGAIN: Duration = Duration::from_secs(3);
const ASKED: u32 = 3;

/// Connections that may wait to be accepted.
#[cfg(unix)]
const BACKLOG: u32 = 128;

/// Where a process listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl FromStr for Address {
    type Err = DataFusionError;

    fn from_str(text: &str) -> Result<Self> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        let Some(address) = text.strip_prefix("tcp:") else {
            return plan_err!("an address is unix:PATH or tcp:HOST:PORT, got '{text}'");
        };
        let address = address.strip_prefix("localhost:").map_or(address.to_owned(), |port| format!("127.0.0.1:{port}"));
        match address.parse::<SocketAddr>() {
            Ok(address) => Ok(Self::Tcp(address)),
            Err(_) => plan_err!("an address is tcp:HOST:PORT with numbers, like tcp:127.0.0.1:0, got 'tcp:{address}'"),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

impl Address {
    /// Whether nobody reaches it but from this machine.
    pub(crate) fn is_of_this_machine(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp(address) => address.ip().is_loopback(),
        }
    }

    /// Whether whoever reaches it has to show that it may.
    pub(crate) fn needs_key(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }

    /// Connects.
    pub(crate) async fn connect(&self) -> Result<Box<dyn Duplex>> {
        let failed = |e: std::io::Error| exec_datafusion_err!("cannot connect to {self}: {e}");
        match self {
            #[cfg(unix)]
            Self::Unix(path) => Ok(Box::new(tokio::net::UnixStream::connect(path).await.map_err(failed)?)),
            #[cfg(not(unix))]
            Self::Unix(_) => exec_err!("{self}: there are no such sockets on this system"),
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address).await.map_err(failed)?;
                watched(&stream)?;
                Ok(Box::new(stream))
            }
        }
    }

    /// Takes connections, and the address at which it does.
    pub(crate) async fn listen(&self) -> Result<(Listener, Self)> {
        let failed = |e: std::io::Error| exec_datafusion_err!("cannot listen at {self}: {e}");
        match self {
            Self::Unix(path) => Ok((Listener::unix(path).await?, self.clone())),
            Self::Tcp(address) => {
                let listener = TcpListener::bind(address).await.map_err(failed)?;
                let bound = listener.local_addr().map_err(failed)?;
                Ok((Listener::Tcp(listener), Self::Tcp(bound)))
            }
        }
    }
}

/// Bytes go at once, and a machine at the other end that is gone is found out.
fn watched(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let alive = TcpKeepalive::new().with_time(SILENCE).with_interval(ASKED_AGAIN).with_retries(ASKED);
    SockRef::from(stream).set_tcp_keepalive(&alive)
}

/// Takes connections.
#[derive(Debug)]
pub(crate) enum Listener {
    #[cfg(unix)]
    Unix(tokio::net::UnixListener, PathBuf),
    Tcp(TcpListener),
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
        Ok(Self::Unix(socket.listen(BACKLOG).map_err(failed)?, path.to_owned()))
    }

    #[cfg(not(unix))]
    async fn unix(path: &Path) -> Result<Self> {
        exec_err!("unix:{}: there are no such sockets on this system", path.display())
    }

    /// The next connection.
    pub(crate) async fn accept(&self) -> std::io::Result<Box<dyn Duplex>> {
        match self {
            #[cfg(unix)]
            Self::Unix(listener, _) => Ok(Box::new(listener.accept().await?.0)),
            Self::Tcp(listener) => {
                let stream = listener.accept().await?.0;
                watched(&stream)?;
                Ok(Box::new(stream))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Self::Unix(_, path) = self {
            let _removed = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_sockets_and_ports() {
        let address = |text: &str| text.parse::<Address>().map(|address| address.to_string());
        assert_eq!(address("unix:/tmp/s").unwrap(), "unix:/tmp/s");
        assert_eq!(address("tcp:localhost:0").unwrap(), "tcp:127.0.0.1:0");
        assert_eq!(address("tcp:[::1]:80").unwrap(), "tcp:[::1]:80");
        assert!(!"tcp:10.0.0.1:80".parse::<Address>().unwrap().is_of_this_machine());
        for (text, said) in [
            ("", "unix:PATH or tcp:HOST:PORT"),
            ("unix:", "unix:PATH or tcp:HOST:PORT"),
            ("tcp:127.0.0.1", "with numbers"),
        ] {
            let error = address(text).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
