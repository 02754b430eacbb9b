//! Where the feature `tls` is off, nothing is encrypted, and what would have to be fails.

use std::path::Path;

use datafusion::common::{Result, plan_err};
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use tokio::net::TcpStream;

use super::duplex::Duplex;

type Talking = BoxFuture<'static, std::io::Result<Box<dyn Duplex>>>;

/// What one would show that listens: there is none.
#[derive(Debug, Clone)]
pub(crate) enum Identity {}

impl Identity {
    /// Fails.
    pub(crate) fn read(_certificate: &Path, _key: &Path) -> Result<Self> {
        none()
    }

    pub(super) fn talk(&self, _stream: TcpStream) -> Talking {
        match *self {}
    }
}

/// Whose certificates are believed: nobody's.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trust;

impl Trust {
    /// Fails.
    pub(crate) fn read(_authorities: &Path) -> Result<Self> {
        none()
    }

    pub(crate) fn is_any(&self) -> bool {
        false
    }

    /// Finds nothing.
    pub(crate) fn check(&self, _certificate: &Path, _whoever_has_signed: bool) -> Result<()> {
        Ok(())
    }

    pub(super) fn talk(&self, _host: &str, _stream: TcpStream) -> Talking {
        ready(Err(std::io::Error::other("this build has no TLS, the feature `tls`"))).boxed()
    }
}

/// No certificate was shown.
pub(super) fn is_of_certificate(_error: &std::io::Error) -> bool {
    false
}

fn none<T>() -> Result<T> {
    plan_err!("certificates need the feature `tls`, which this build does not have")
}
