//! Where a split is served: a Unix socket, or a port of this machine.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err, plan_err};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

/// Bytes that come and go.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Connections that may wait to be accepted.
#[cfg(unix)]
const BACKLOG: u32 = 128;

/// Where a split is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
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
            Ok(address) if address.ip().is_loopback() => Ok(Self::Tcp(address)),
            Ok(address) => plan_err!("splits are served on this machine alone, at 127.0.0.1 or [::1], not {address}"),
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
    /// Whether whoever reaches it has to show that it may.
    pub(super) fn needs_key(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }

    /// Connects.
    pub(super) async fn connect(&self) -> Result<Box<dyn Duplex>> {
        let failed = |e: std::io::Error| exec_datafusion_err!("cannot connect to {self}: {e}");
        match self {
            #[cfg(unix)]
            Self::Unix(path) => Ok(Box::new(tokio::net::UnixStream::connect(path).await.map_err(failed)?)),
            #[cfg(not(unix))]
            Self::Unix(_) => exec_err!("{self}: there are no such sockets on this system"),
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address).await.map_err(failed)?;
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
        }
    }

    /// Takes connections, and the address at which it does.
    pub(super) async fn listen(&self) -> Result<(Listener, Self)> {
        let failed = |e: std::io::Error| exec_datafusion_err!("cannot listen at {self}: {e}");
        match self {
            Self::Unix(path) => Ok((Listener::unix(path).await?, self.clone())),
            Self::Tcp(address) => {
                debug_assert!(IpAddr::is_loopback(&address.ip()));
                let listener = TcpListener::bind(address).await.map_err(failed)?;
                let bound = listener.local_addr().map_err(failed)?;
                Ok((Listener::Tcp(listener), Self::Tcp(bound)))
            }
        }
    }
}

/// Takes connections.
#[derive(Debug)]
pub(super) enum Listener {
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
    pub(super) async fn accept(&self) -> std::io::Result<Box<dyn Duplex>> {
        match self {
            #[cfg(unix)]
            Self::Unix(listener, _) => Ok(Box::new(listener.accept().await?.0)),
            Self::Tcp(listener) => {
                let stream = listener.accept().await?.0;
                stream.set_nodelay(true)?;
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
    fn addresses_are_of_this_machine() {
        let address = |text: &str| text.parse::<Address>().map(|address| address.to_string());
        assert_eq!(address("unix:/tmp/s").unwrap(), "unix:/tmp/s");
        assert_eq!(address("tcp:localhost:0").unwrap(), "tcp:127.0.0.1:0");
        assert_eq!(address("tcp:[::1]:80").unwrap(), "tcp:[::1]:80");
        for (text, said) in [
            ("", "unix:PATH or tcp:HOST:PORT"),
            ("unix:", "unix:PATH or tcp:HOST:PORT"),
            ("tcp:127.0.0.1", "with numbers"),
            ("tcp:0.0.0.0:1", "on this machine alone"),
            ("tcp:10.0.0.1:1", "on this machine alone"),
        ] {
            let error = address(text).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
