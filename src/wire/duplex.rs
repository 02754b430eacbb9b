//! [`Duplex`].

use tokio::io::{AsyncRead, AsyncWrite};

/// Bytes that come and go.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}
