//! Connections that are encrypted: who listens shows a certificate, and who connects says whose it believes.

use std::path::Path;
use std::sync::Arc;

use datafusion::common::{Result, plan_datafusion_err, plan_err};
use futures::FutureExt;
use tokio::net::TcpStream;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ClientConfig, Error, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::address::{Duplex, Opening};

/// What one shows that listens.
#[derive(Clone)]
pub(crate) struct Identity(TlsAcceptor);

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity(..)")
    }
}

impl Identity {
    /// By files in PEM: a certificate, with those that have signed it behind it, and its key.
    ///
    /// # Errors
    ///
    /// Where one of them cannot be read, or they do not belong together.
    pub(crate) fn read(certificate: &Path, key: &Path) -> Result<Self> {
        let chain = certificates(certificate)?;
        let private = PrivateKeyDer::from_pem_file(key)
            .map_err(|e| plan_datafusion_err!("cannot read a key from '{}': {e}", key.display()))?;
        let fails = |e: Error| {
            let (certificate, key) = (certificate.display(), key.display());
            plan_datafusion_err!("the certificate of '{certificate}' and the key of '{key}' cannot be used: {e}")
        };
        let config =
            ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]).map_err(fails)?;
        let config = config.with_no_client_auth().with_single_cert(chain, private).map_err(fails)?;
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    /// Talks to whoever has connected.
    pub(super) fn talk(&self, stream: TcpStream) -> Opening {
        let accepted = self.0.accept(stream);
        async move { Ok(Box::new(accepted.await?) as Box<dyn Duplex>) }.boxed()
    }
}

/// Whose certificates are believed.
#[derive(Clone, Default)]
pub(crate) struct Trust(Option<TlsConnector>);

impl std::fmt::Debug for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Trust(any={})", self.is_any())
    }
}

impl Trust {
    /// Those that the certificates of a file in PEM have signed, and these themselves.
    ///
    /// # Errors
    ///
    /// Where the file cannot be read, or has none.
    pub(crate) fn read(authorities: &Path) -> Result<Self> {
        let fails = |e: &dyn std::fmt::Display| {
            plan_datafusion_err!("the certificates of '{}' cannot be used: {e}", authorities.display())
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(authorities)? {
            roots.add(certificate).map_err(|e| fails(&e))?;
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
        let verifier = verifier.build().map_err(|e| fails(&e))?;
        let config = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
        let config = config.map_err(|e| fails(&e))?.with_webpki_verifier(verifier).with_no_client_auth();
        Ok(Self(Some(TlsConnector::from(Arc::new(config)))))
    }

    /// Whether it is anybody's.
    pub(crate) fn is_any(&self) -> bool {
        self.0.is_some()
    }

    /// Talks to a host, if it is this one.
    pub(super) async fn talk(&self, host: &str, stream: TcpStream) -> std::io::Result<Box<dyn Duplex>> {
        let Some(connector) = &self.0 else {
            return Err(std::io::Error::other("nothing says whose certificates are believed"));
        };
        let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
        Ok(Box::new(connector.connect(name, stream).await?))
    }
}

/// Whether an error is that a certificate is not believed.
pub(super) fn is_of_certificate(error: &std::io::Error) -> bool {
    let told = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    matches!(told, Some(Error::InvalidCertificate(_)))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let failed = |e| plan_datafusion_err!("cannot read certificates from '{}': {e}", file.display());
    let certificates =
        CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    match certificates.map_err(failed)? {
        none if none.is_empty() => plan_err!("there is no certificate in '{}'", file.display()),
        certificates => Ok(certificates),
    }
}
