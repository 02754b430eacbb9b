//! Connections that are encrypted: who listens shows a certificate, and who connects says whose it believes.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;

use datafusion::common::{Result, plan_datafusion_err, plan_err};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::net::TcpStream;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{Error as PemError, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{CertificateError, ClientConfig, Error, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::duplex::Duplex;

/// A connection, once both sides have agreed on how to talk.
type Talking = BoxFuture<'static, std::io::Result<Box<dyn Duplex>>>;

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
        let private = PrivateKeyDer::from_pem_file(key).map_err(|e| match e {
            PemError::NoItemsFound => {
                plan_datafusion_err!("there is no key in '{}', or one that is encrypted itself", key.display())
            }
            e => plan_datafusion_err!("cannot read a key from '{}': {e}", key.display()),
        })?;
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
    pub(super) fn talk(&self, stream: TcpStream) -> Talking {
        let accepted = self.0.accept(stream);
        async move { Ok(Box::new(accepted.await?) as Box<dyn Duplex>) }.boxed()
    }
}

/// Whose certificates are believed.
#[derive(Clone, Default)]
pub(crate) struct Trust(Option<Believed>);

#[derive(Clone)]
struct Believed {
    connector: TlsConnector,
    verifier: Arc<WebPkiServerVerifier>,
}

impl std::fmt::Debug for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Trust(any={})", self.is_any())
    }
}

impl Trust {
    /// Those that the certificates of a file in PEM have signed, which may be these themselves.
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
        let config = config.map_err(|e| fails(&e))?.with_webpki_verifier(Arc::clone(&verifier)).with_no_client_auth();
        Ok(Self(Some(Believed { connector: TlsConnector::from(Arc::new(config)), verifier })))
    }

    /// Looks whether somebody who believes the same would believe a certificate, of whatever host it is. Who has signed
    /// it matters only where that is not said elsewhere.
    ///
    /// # Errors
    ///
    /// Where nobody would, and why.
    pub(crate) fn check(&self, certificate: &Path, whoever_has_signed: bool) -> Result<()> {
        let Some(believed) = &self.0 else { return Ok(()) };
        let chain = certificates(certificate)?;
        let Some((own, others)) = chain.split_first() else { return Ok(()) };
        let anybody = ServerName::from(IpAddr::from(Ipv4Addr::UNSPECIFIED));
        let file = certificate.display();
        match believed.verifier.verify_server_cert(own, others, &anybody, &[], UnixTime::now()) {
            Ok(_) => Ok(()),
            Err(Error::InvalidCertificate(e)) => match e {
                CertificateError::NotValidForNameContext { presented, .. } if presented.is_empty() => {
                    plan_err!("the certificate of '{file}' is of no host: it needs a subjectAltName")
                }
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => Ok(()),
                CertificateError::UnknownIssuer if whoever_has_signed => Ok(()),
                CertificateError::UnknownIssuer => {
                    plan_err!("the certificate of '{file}' has not signed itself; say with --tls-ca who has")
                }
                e if format!("{e:?}").contains("CaUsedAsEndEntity") => {
                    plan_err!("the certificate of '{file}' is one of an authority (CA:TRUE), which no process may show")
                }
                e => plan_err!("nobody would believe the certificate of '{file}': {e}"),
            },
            Err(e) => plan_err!("the certificate of '{file}' cannot be shown: {e}"),
        }
    }

    /// Whether it is anybody's.
    pub(crate) fn is_any(&self) -> bool {
        self.0.is_some()
    }

    /// Talks to a host, if it is this one.
    pub(super) fn talk(&self, host: &str, stream: TcpStream) -> Talking {
        let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other);
        let connector = self.0.as_ref().map(|believed| believed.connector.clone());
        async move {
            let Some(connector) = connector else {
                return Err(std::io::Error::other("nothing says whose certificates are believed"));
            };
            let connected = connector.connect(name?, stream).await.map_err(|e| match rustls_error(&e) {
                Some(Error::InvalidMessage(_)) => std::io::Error::other("what is said there is not encrypted"),
                _ => e,
            });
            Ok(Box::new(connected?) as Box<dyn Duplex>)
        }
        .boxed()
    }
}

/// Whether an error is that a certificate is not believed.
pub(super) fn is_of_certificate(error: &std::io::Error) -> bool {
    matches!(rustls_error(error), Some(Error::InvalidCertificate(_)))
}

fn rustls_error(error: &std::io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
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
