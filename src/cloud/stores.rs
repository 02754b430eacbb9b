//! The stores of a session: those that were registered, the disks of this machine, and those that are opened when their
//! address is used.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use datafusion::common::{Result, plan_err};
use datafusion::execution::object_store::ObjectStoreRegistry;
use object_store::ObjectStore;
use object_store::multipart::MultipartStore;
use parking_lot::RwLock;
use url::Url;

use super::kinds::StoreKind;
use super::opening::{KindStore, Opening, Settings};
use super::secrets::{SecretStatus, Secrets, StoreEnvironment, StoreOptions};
use super::traffic::Traffic;
use crate::config::BlockyardOptions;

/// What may be shown of a store.
#[derive(Debug, Clone)]
pub(crate) struct StoreStatus {
    pub(crate) store: String,
    pub(crate) kind: &'static str,
    /// The secret that it was opened with.
    pub(crate) secret: String,
    /// Requests that there may be at once, and that there are.
    pub(crate) limit: usize,
    pub(crate) under_way: usize,
    pub(crate) requests: u64,
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) retries: u64,
    pub(crate) refused: u64,
    pub(crate) held_back_ms: u64,
}

/// The stores of a session.
pub(crate) struct CloudStores {
    registered: Arc<dyn ObjectStoreRegistry>,
    /// Variables, which are options of all stores of their kind.
    environment: StoreEnvironment,
    state: RwLock<State>,
}

struct State {
    settings: Settings,
    secrets: Secrets,
    opened: BTreeMap<String, Opened>,
}

struct Opened {
    kind: StoreKind,
    secret: String,
    store: KindStore,
    traffic: Arc<Traffic>,
}

/// Without what opens them.
impl fmt::Debug for CloudStores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.read();
        let opened: Vec<&String> = state.opened.keys().collect();
        f.debug_struct("CloudStores").field("secrets", &state.secrets).field("opened", &opened).finish_non_exhaustive()
    }
}

impl CloudStores {
    /// Those of `registered`, and others as the variables of the environment say.
    pub(crate) fn new(
        registered: Arc<dyn ObjectStoreRegistry>,
        environment: StoreEnvironment,
        options: &BlockyardOptions,
    ) -> Self {
        let state = State { settings: Settings::of(options), secrets: Secrets::default(), opened: BTreeMap::new() };
        Self { registered, environment, state: RwLock::new(state) }
    }

    /// How requests are made by those who ask for a store from now on.
    pub(crate) fn configure(&self, options: &BlockyardOptions) {
        let mut state = self.state.write();
        let settings = Settings::of(options);
        if settings != state.settings {
            state.settings = settings;
            state.opened.clear();
        }
    }

    /// Keeps a secret for stores that are asked for from now on.
    ///
    /// # Errors
    ///
    /// Where there is one of that name and `replace` is not set, and where kind, scope or keys are unknown.
    pub(crate) fn create_secret(&self, name: &str, options: StoreOptions, replace: bool) -> Result<()> {
        let mut state = self.state.write();
        state.secrets.create(name, options, replace)?;
        state.opened.clear();
        Ok(())
    }

    /// Forgets a secret.
    ///
    /// # Errors
    ///
    /// Where it is not there, and `may_be_missing` is not set.
    pub(crate) fn drop_secret(&self, name: &str, may_be_missing: bool) -> Result<()> {
        let mut state = self.state.write();
        state.secrets.drop(name, may_be_missing)?;
        state.opened.clear();
        Ok(())
    }

    /// What may be shown of the secrets.
    pub(crate) fn secrets(&self) -> Vec<SecretStatus> {
        self.state.read().secrets.statuses()
    }

    /// What takes uploads to the store at an address, which any process can complete. None where the store was
    /// registered, takes no uploads, or was not asked for before.
    pub(crate) fn uploads_to(&self, url: &Url) -> Option<Arc<dyn MultipartStore>> {
        if self.registered.get_store(url).is_ok() {
            return None;
        }
        let state = self.state.read();
        state.opened.get(&url[..url::Position::BeforePath])?.store.uploads.clone()
    }

    /// The stores that are open.
    pub(crate) fn stores(&self) -> Vec<StoreStatus> {
        let status = |(store, opened): (&String, &Opened)| {
            let counts = &opened.traffic.counts;
            StoreStatus {
                store: store.clone(),
                kind: opened.kind.name(),
                secret: opened.secret.clone(),
                limit: opened.traffic.limit(),
                under_way: opened.traffic.under_way(),
                requests: counts.requests.load(Relaxed),
                received_bytes: counts.received_bytes.load(Relaxed),
                sent_bytes: counts.sent_bytes.load(Relaxed),
                retries: counts.failed.load(Relaxed),
                refused: counts.refused.load(Relaxed),
                held_back_ms: counts.held_back_ms.load(Relaxed),
            }
        };
        self.state.read().opened.iter().map(status).collect()
    }
}

impl ObjectStoreRegistry for CloudStores {
    fn register_store(&self, url: &Url, store: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        self.registered.register_store(url, store)
    }

    fn deregister_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        self.registered.deregister_store(url)
    }

    fn get_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        if let Ok(store) = self.registered.get_store(url) {
            return Ok(store);
        }
        let Some(kind) = StoreKind::of_scheme(url.scheme())? else {
            return plan_err!(
                "no store is known for '{url}': addresses may begin with {}, and others are added by \
                 SessionContext::register_object_store",
                schemes_text()
            );
        };
        let address = url[..url::Position::BeforePath].to_owned();
        if let Some(opened) = self.state.read().opened.get(&address) {
            return Ok(Arc::clone(&opened.store.objects));
        }
        let mut state = self.state.write();
        if let Some(opened) = state.opened.get(&address) {
            return Ok(Arc::clone(&opened.store.objects));
        }
        let mut options = kind.options_of(self.environment.variables());
        let secret = state.secrets.of(kind, &address).map(|(name, secret)| {
            // What a secret says replaces what the environment says.
            options.extend_from_slice(secret);
            name.to_owned()
        });
        let traffic = Arc::new(Traffic::new(state.settings.concurrency));
        let opening = Opening { url, options: &options, settings: state.settings, traffic: Arc::clone(&traffic) };
        let store = kind.open(opening)?;
        let objects = Arc::clone(&store.objects);
        state.opened.insert(address, Opened { kind, secret: secret.unwrap_or_default(), store, traffic });
        Ok(objects)
    }
}

fn schemes_text() -> String {
    let known = StoreKind::all_schemes().into_iter().map(|scheme| format!("{scheme}://"));
    std::iter::once("file://".to_owned()).chain(known).collect::<Vec<_>>().join(", ")
}
