//! [`Credentials`].

use std::path::Path;

use datafusion::common::{Result, exec_err, plan_err};
use serde::{Deserialize, Serialize};

use crate::config::BlockyardOptions;
use crate::wire::{Address, Duplex, Trust};

/// Whom a process can ask.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Reach {
    /// Whether it has a token to show.
    pub(super) token: bool,
    /// Whether it believes the certificates of anybody.
    pub(super) trust: bool,
}

impl Reach {
    /// Whether it can ask whoever is at an address.
    pub(super) fn covers(self, address: &Address) -> bool {
        (self.token || !address.needs_key()) && (self.trust || !address.is_encrypted())
    }
}

/// What a process shows to executors, and which of them it believes.
#[derive(Debug, Clone, Default)]
pub(super) struct Credentials {
    token: Option<String>,
    trust: Trust,
}

impl Credentials {
    pub(super) fn new(token: Option<String>, trust: Trust) -> Self {
        Self { token, trust }
    }

    /// Those of a session.
    pub(super) async fn of(options: &BlockyardOptions) -> Result<Self> {
        let (file, authorities) = (options.cluster_token_file.trim(), options.cluster_tls_ca.trim());
        let token = match file.is_empty() {
            true => None,
            false => match tokio::fs::read_to_string(file).await {
                Ok(token) => Some(token.trim().to_owned()),
                Err(e) => {
                    return exec_err!(
                        "the token of the executors, blockyard.cluster_token_file = '{file}', cannot be read: {e}"
                    );
                }
            },
        };
        let trust = if authorities.is_empty() { Trust::default() } else { Trust::read(Path::new(authorities))? };
        Ok(Self { token, trust })
    }

    /// The token for whoever is at an address, if one is asked for there.
    pub(super) fn token_for(&self, address: &Address) -> Option<String> {
        self.token.clone().filter(|_| address.needs_key())
    }

    /// Whom they let ask.
    pub(super) fn reach(&self) -> Reach {
        Reach { token: self.token.is_some(), trust: self.trust.is_any() }
    }

    /// Connects.
    pub(super) async fn connect(&self, address: &Address) -> Result<Box<dyn Duplex>> {
        if address.is_encrypted() && !self.trust.is_any() {
            return plan_err!(
                "cannot connect to {address}: nothing says whose certificates are believed; see \
                 blockyard.cluster_tls_ca, and --tls-ca of executors"
            );
        }
        address.connect(&self.trust).await
    }
}
