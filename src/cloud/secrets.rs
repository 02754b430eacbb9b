//! What opens stores: credentials and endpoints by name, each for the addresses that begin with its scope. Their values
//! are told to nobody but the store.

use std::collections::BTreeMap;
use std::fmt;

use datafusion::common::{Result, plan_err};
use url::Url;

use super::kinds::StoreKind;
use crate::error::unknown_name;

/// How a store is reached and who asks: endpoint, region, credentials. Keys are those of the `object_store` crate, in
/// any case: `endpoint`, `access_key_id`, `account_name`, `service_account`.
#[derive(Clone, Default)]
pub struct StoreOptions {
    /// `s3`, `gcs`, `azure` or `http`.
    pub kind: String,
    /// The addresses that it is for: `s3://bucket/`, or `s3://` for all. Empty means all of this kind. Of those that
    /// are for a store, the longest is taken.
    pub scope: String,
    /// Keys and their values.
    pub options: Vec<(String, String)>,
}

/// Without the values.
impl fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<&str> = self.options.iter().map(|(key, _)| key.as_str()).collect();
        f.debug_struct("StoreOptions")
            .field("kind", &self.kind)
            .field("scope", &self.scope)
            .field("keys", &keys)
            .finish()
    }
}

/// Variables of an environment that say how object stores are reached: `AWS_*`, `GOOGLE_*` and `AZURE_*`, as the
/// `object_store` crate names them.
#[derive(Clone, Default)]
pub struct StoreEnvironment(Vec<(String, String)>);

impl StoreEnvironment {
    pub(super) fn variables(&self) -> &[(String, String)] {
        &self.0
    }
}

/// Of all variables, those that are for stores.
impl FromIterator<(String, String)> for StoreEnvironment {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(variables: T) -> Self {
        Self(variables.into_iter().filter(|(name, _)| StoreKind::reads(name)).collect())
    }
}

/// Without the values.
impl fmt::Debug for StoreEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// What may be shown of a secret.
#[derive(Debug, Clone)]
pub(crate) struct SecretStatus {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    pub(crate) scope: String,
    /// Those that have values.
    pub(crate) keys: String,
}

/// All secrets of a session.
#[derive(Debug, Default)]
pub(super) struct Secrets(BTreeMap<String, Secret>);

struct Secret {
    kind: StoreKind,
    /// How addresses begin that it is for.
    scopes: Vec<String>,
    options: Vec<(String, String)>,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("kind", &self.kind).field("scopes", &self.scopes).finish_non_exhaustive()
    }
}

impl Secrets {
    /// Keeps a secret. One of the same name is replaced if `replace` says so, else it is an error.
    pub(super) fn create(&mut self, name: &str, options: StoreOptions, replace: bool) -> Result<()> {
        if !replace && self.0.contains_key(name) {
            return plan_err!("secret '{name}' exists already; CREATE OR REPLACE SECRET replaces it");
        }
        let kind = StoreKind::of_name(&options.kind)?;
        options.options.iter().try_for_each(|(key, _)| kind.check_key(key))?;
        let scopes = scopes(kind, name, &options.scope)?;
        let options = options.options.into_iter().map(|(key, value)| (key.to_lowercase(), value)).collect();
        self.0.insert(name.to_owned(), Secret { kind, scopes, options });
        Ok(())
    }

    /// Forgets a secret. Whether it was there; an error if it was not and has to be.
    pub(super) fn drop(&mut self, name: &str, may_be_missing: bool) -> Result<()> {
        match self.0.remove(name) {
            None if !may_be_missing => {
                let names: Vec<_> = self.0.keys().map(String::as_str).collect();
                Err(unknown_name("secret", name, "", &names))
            }
            _ => Ok(()),
        }
    }

    /// The secret for a store, and what it is called.
    pub(super) fn of(&self, kind: StoreKind, store: &str) -> Option<(&str, &[(String, String)])> {
        let of_kind = self.0.iter().filter(|(_, secret)| secret.kind == kind);
        let fitting = of_kind.filter_map(|(name, secret)| {
            let longest =
                secret.scopes.iter().filter(|scope| store.starts_with(scope.as_str())).map(String::len).max()?;
            Some((longest, name, secret))
        });
        let best = fitting.max_by_key(|(longest, ..)| *longest);
        best.map(|(_, name, secret)| (name.as_str(), secret.options.as_slice()))
    }

    /// What may be shown of them.
    pub(super) fn statuses(&self) -> Vec<SecretStatus> {
        let status = |(name, secret): (&String, &Secret)| SecretStatus {
            name: name.clone(),
            kind: secret.kind.name(),
            scope: secret.scopes.join(", "),
            keys: secret.options.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>().join(", "),
        };
        self.0.iter().map(status).collect()
    }
}

/// How addresses begin that a secret is for: all of its kind, or one store.
fn scopes(kind: StoreKind, name: &str, scope: &str) -> Result<Vec<String>> {
    if scope.is_empty() {
        return Ok(kind.schemes().iter().map(|scheme| format!("{scheme}://")).collect());
    }
    let Some((scheme, rest)) = scope.split_once("://").filter(|(scheme, _)| kind.schemes().contains(scheme)) else {
        let schemes: Vec<_> = kind.schemes().iter().map(|scheme| format!("{scheme}://")).collect();
        return plan_err!("the scope '{scope}' of secret '{name}' does not begin with {}", schemes.join(" or "));
    };
    if rest.is_empty() {
        return Ok(vec![format!("{scheme}://")]);
    }
    match Url::parse(scope) {
        Ok(url) if url.path().trim_matches('/').is_empty() => Ok(vec![url[..url::Position::BeforePath].to_owned()]),
        Ok(url) => plan_err!(
            "the scope '{scope}' of secret '{name}' is a part of a store; a secret is for all of '{}/'",
            &url[..url::Position::BeforePath]
        ),
        Err(e) => plan_err!("the scope '{scope}' of secret '{name}' is no address: {e}"),
    }
}

#[cfg(all(test, feature = "cloud"))]
mod tests {
    use super::*;

    fn options(scope: &str, value: &str) -> StoreOptions {
        let options = vec![("ENDPOINT".to_owned(), value.to_owned())];
        StoreOptions { kind: "S3".to_owned(), scope: scope.to_owned(), options }
    }

    #[test]
    fn the_longest_scope_is_taken() {
        let mut secrets = Secrets::default();
        for (name, scope) in [("all", ""), ("one", "s3://b/"), ("other", "s3://c")] {
            secrets.create(name, options(scope, name), false).unwrap();
        }
        let endpoint =
            |store: &str| secrets.of(StoreKind::S3, store).map(|(name, options)| (name, options[0].1.as_str()));
        assert_eq!(endpoint("s3://b"), Some(("one", "one")));
        assert_eq!(endpoint("s3://c"), Some(("other", "other")));
        assert_eq!(endpoint("s3://d"), Some(("all", "all")));
        assert_eq!(endpoint("s3a://d"), Some(("all", "all")));
        assert!(secrets.of(StoreKind::Gcs, "gs://b").is_none());
    }

    #[test]
    fn what_makes_no_sense_is_an_error_and_values_do_not_show() {
        let mut secrets = Secrets::default();
        secrets.create("a", options("", "hidden"), false).unwrap();
        let error = |secrets: &mut Secrets, name: &str, options: StoreOptions| {
            secrets.create(name, options, false).unwrap_err().to_string()
        };
        assert!(error(&mut secrets, "a", options("", "")).contains("exists already"));
        assert!(error(&mut secrets, "b", options("gs://b", "")).contains("does not begin with s3://"));
        assert!(error(&mut secrets, "b", options("s3://b/dir/", "")).contains("is for all of 's3://b/'"));
        let unknown = StoreOptions { options: vec![("endpont".to_owned(), "x".to_owned())], ..options("", "") };
        assert!(error(&mut secrets, "b", unknown).contains("Did you mean 'endpoint'?"));
        let kind = StoreOptions { kind: "s4".to_owned(), ..StoreOptions::default() };
        assert!(error(&mut secrets, "b", kind).contains("unknown type 's4' of a secret. Accepted: s3"));
        assert!(secrets.drop("b", false).unwrap_err().to_string().contains("unknown secret 'b'"));
        let shown = format!("{secrets:?} {:?} {:?}", secrets.statuses(), options("", "hidden"));
        assert!(!shown.contains("hidden"), "{shown}");
    }
}
