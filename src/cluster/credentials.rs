//! [`Credentials`].

use std::fmt;
use std::path::Path;

use datafusion::common::{Result, exec_err, plan_err};
use serde::{Deserialize, Serialize};

use crate::config::BlockyardOptions;
use crate::wire::{Address, Opening, Trust};

/// What executors want to see, and nobody else may.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Token(pub(super) String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Whom a process can ask.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Reach {
    /// Whether it has a token to show.
    pub(super) token: bool,
    /// Whether it shows that also to other machines where nothing is encrypted.
    pub(super) insecure: bool,
    /// Whether it believes the certificates of anybody.
    pub(super) trust: bool,
}

impl Reach {
    /// Whether it can ask whoever is at an address.
    pub(super) fn covers(self, address: &Address) -> bool {
        match address.is_encrypted() {
            true => self.token && self.trust,
            false => !address.needs_key() || self.token && self.shows(address),
        }
    }

    /// Whether a token may be shown at an address.
    fn shows(self, address: &Address) -> bool {
        self.insecure || address.is_encrypted() || address.is_of_this_machine()
    }
}

/// What a process shows to executors, and which of them it believes.
#[derive(Debug, Clone, Default)]
pub(super) struct Credentials {
    token: Option<Token>,
    insecure: bool,
    trust: Trust,
}

impl Credentials {
    pub(super) fn new(token: Option<Token>, insecure: bool, trust: Trust) -> Self {
        Self { token, insecure, trust }
    }

    /// Those of a session.
    pub(super) async fn of(options: &BlockyardOptions) -> Result<Self> {
        let (file, authorities) = (options.cluster_token_file.trim(), options.cluster_tls_ca.trim());
        let token = match file.is_empty() {
            true => None,
            false => match tokio::fs::read_to_string(file).await {
                Ok(token) => Some(Token(token.trim().to_owned())),
                Err(e) => {
                    return exec_err!(
                        "the token of the executors, blockyard.cluster_token_file = '{file}', cannot be read: {e}"
                    );
                }
            },
        };
        let trust = if authorities.is_empty() { Trust::default() } else { Trust::read(Path::new(authorities))? };
        Ok(Self { token, insecure: options.cluster_insecure, trust })
    }

    /// The token for whoever is at an address, if one is asked for there.
    pub(super) fn token_for(&self, address: &Address) -> Option<Token> {
        self.token.clone().filter(|_| address.needs_key())
    }

    /// Whom they let ask.
    pub(super) fn reach(&self) -> Reach {
        Reach { token: self.token.is_some(), insecure: self.insecure, trust: self.trust.is_any() }
    }

    /// Connects, where that may be.
    pub(super) async fn connect(&self, address: &Address) -> Result<Opening> {
        if self.token_for(address).is_some() && !self.reach().shows(address) {
            return plan_err!(
                "what is said at {address} is not encrypted, and who sees the network would see the token: connect to \
                 tls:, or say with blockyard.cluster_insecure, or --insecure of executors, that it may be seen"
            );
        }
        if address.is_encrypted() && !self.trust.is_any() {
            return plan_err!(
                "cannot connect to {address}: nothing says whose certificates are believed; see \
                 blockyard.cluster_tls_ca, and --tls-ca of executors"
            );
        }
        address.connect(&self.trust).await
    }
}
