//! The kinds of stores: their schemes, which variables of the environment they read, and how they are opened.

use std::str::FromStr;
use std::sync::Arc;

use datafusion::common::{DataFusionError, Result};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::multipart::MultipartStore;
use object_store::{ClientConfigKey, ClientOptions, ObjectStore, RetryConfig};

use super::opening::{KindStore, Opening};
use super::requests::Requests;
use crate::error::{ErrorContext, unknown_name};

/// A kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreKind {
    S3,
    Gcs,
    Azure,
    Http,
}

/// What a kind says of itself.
struct About {
    kind: StoreKind,
    /// Its name in `CREATE SECRET`, and other names for it.
    names: &'static [&'static str],
    schemes: &'static [&'static str],
    /// How the variables of the environment begin that are options of it.
    variables: &'static [&'static str],
    /// Options that say who asks, one of which is there unless the machine knows; and what to say where none is.
    credentials: &'static [&'static str],
    advice: &'static str,
}

const KINDS: [About; 4] = [
    About {
        kind: StoreKind::S3,
        names: &["s3"],
        schemes: &["s3", "s3a"],
        variables: &["AWS_"],
        credentials: &["access_key_id", "web_identity", "container_credentials", "skip_signature"],
        advice: "no credentials were given: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true \
                 for public buckets, or CREATE SECRET",
    },
    About {
        kind: StoreKind::Gcs,
        names: &["gcs", "gs"],
        schemes: &["gs"],
        variables: &["GOOGLE_"],
        credentials: &["service_account", "application_credentials", "skip_signature"],
        advice: "no credentials were given: set GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS, or \
                 GOOGLE_SKIP_SIGNATURE=true for public buckets, or CREATE SECRET",
    },
    About {
        kind: StoreKind::Azure,
        names: &["azure", "az"],
        schemes: &["az", "azure", "abfs", "abfss", "adl"],
        variables: &["AZURE_"],
        credentials: &["key", "token", "sas", "client_secret", "skip_signature", "msi", "federated", "emulator"],
        advice: "no credentials were given: set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or \
                 AZURE_STORAGE_SAS_TOKEN, or CREATE SECRET",
    },
    About {
        kind: StoreKind::Http,
        names: &["http"],
        schemes: &["http", "https"],
        variables: &[],
        credentials: &[""],
        advice: "",
    },
];

impl StoreKind {
    /// The kind of this name in `CREATE SECRET`.
    pub(super) fn of_name(name: &str) -> Result<Self> {
        let found = KINDS.iter().find(|about| about.names.iter().any(|known| known.eq_ignore_ascii_case(name)));
        let names: Vec<_> = KINDS.iter().map(|about| about.names[0]).collect();
        found.map(|about| about.kind).ok_or_else(|| unknown_name("type", name, "a secret", &names))
    }

    /// The kind of store that a scheme stands for.
    pub(super) fn of_scheme(scheme: &str) -> Result<Option<Self>> {
        Ok(KINDS.iter().find(|about| about.schemes.contains(&scheme)).map(|about| about.kind))
    }

    /// The schemes that are known.
    pub(super) fn all_schemes() -> Vec<&'static str> {
        KINDS.iter().flat_map(|about| about.schemes.iter().copied()).collect()
    }

    fn about(self) -> &'static About {
        &KINDS[self as usize]
    }

    /// The first of its names.
    pub(super) fn name(self) -> &'static str {
        self.about().names[0]
    }

    /// The schemes of its addresses.
    pub(super) fn schemes(self) -> &'static [&'static str] {
        self.about().schemes
    }

    /// Fails where a key is none of the options that object_store knows.
    pub(super) fn check_key(self, key: &str) -> Result<()> {
        let key = key.to_lowercase();
        let is_known = match self {
            Self::S3 => AmazonS3ConfigKey::from_str(&key).is_ok(),
            Self::Gcs => GoogleConfigKey::from_str(&key).is_ok(),
            Self::Azure => AzureConfigKey::from_str(&key).is_ok(),
            Self::Http => ClientConfigKey::from_str(&key).is_ok(),
        };
        let usual: &[&str] = match self {
            Self::S3 => {
                &["access_key_id", "secret_access_key", "session_token", "region", "endpoint", "skip_signature"]
            }
            Self::Gcs => &["service_account", "service_account_key", "application_credentials", "skip_signature"],
            Self::Azure => &["account_name", "account_key", "sas_token", "client_id", "client_secret", "tenant_id"],
            Self::Http => &["user_agent", "proxy_url", "timeout", "allow_invalid_certificates"],
        };
        match is_known {
            true => Ok(()),
            false => Err(unknown_name("option", &key, &format!("a secret of type {}", self.name()), usual)),
        }
    }

    /// Whether a variable of an environment is for one of the kinds.
    pub(super) fn reads(variable: &str) -> bool {
        KINDS.iter().flat_map(|about| about.variables).any(|prefix| variable.starts_with(prefix))
    }

    /// The variables of an environment that are options of it.
    pub(super) fn options_of(self, environment: &[(String, String)]) -> Vec<(String, String)> {
        let ours = |name: &str| self.about().variables.iter().any(|prefix| name.starts_with(prefix));
        let known = environment.iter().filter(|(name, _)| ours(name) && self.check_key(name).is_ok());
        known.map(|(name, value)| (name.to_lowercase(), value.clone())).collect()
    }

    /// Opens the store at an address.
    pub(super) fn open(self, opening: Opening<'_>) -> Result<KindStore> {
        let Opening { url, options, settings, traffic } = opening;
        let text = &url[..url::Position::BeforePath];
        // Whoever writes an endpoint without TLS means it.
        let plain = |(key, value): &(String, String)| key.contains("endpoint") && value.starts_with("http://");
        let allow_http = url.scheme() == "http" || options.iter().any(plain);
        let client = ClientOptions::new()
            .with_connect_timeout(settings.connect_timeout)
            .with_timeout_disabled()
            .with_allow_http(allow_http);
        let retry = RetryConfig {
            max_retries: settings.max_retries,
            retry_timeout: settings.retry_timeout,
            ..RetryConfig::default()
        };
        let has = |word: &&str| options.iter().any(|(key, _)| key.contains(word));
        let advice = if self.about().credentials.iter().any(has) { "" } else { self.about().advice };
        let requests = Requests::new(traffic, settings.read_timeout, advice)?;
        macro_rules! opened {
            ($builder:ident, $key:ty) => {{
                let builder = $builder::new().with_url(text).with_client_options(client).with_retry(retry);
                let builder = options.iter().fold(builder.with_http_connector(requests), |builder, (key, value)| {
                    match <$key>::from_str(key) {
                        Ok(key) => builder.with_config(key, value),
                        Err(_) => builder,
                    }
                });
                builder.build().map(Arc::new)
            }};
        }
        let opened = match self {
            Self::S3 => opened!(AmazonS3Builder, AmazonS3ConfigKey).map(takes_uploads),
            Self::Gcs => opened!(GoogleCloudStorageBuilder, GoogleConfigKey).map(takes_uploads),
            Self::Azure => opened!(MicrosoftAzureBuilder, AzureConfigKey).map(takes_uploads),
            Self::Http => opened!(HttpBuilder, ClientConfigKey).map(|objects| KindStore { objects, uploads: None }),
        };
        opened.map_err(DataFusionError::from).while_doing(|| format!("opening '{text}'"))
    }
}

fn takes_uploads<S: ObjectStore + MultipartStore>(store: Arc<S>) -> KindStore {
    KindStore { objects: Arc::clone(&store) as _, uploads: Some(store) }
}
