//! The lines that servers and clients of splits say.

use datafusion::common::{Result, plan_err};
use serde::{Deserialize, Serialize};

use crate::wire::Address;

/// The version of what is said.
pub(super) const PROTOCOL: u64 = 1;

/// The first line of a client.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Hello {
    pub(super) protocol: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) consumer: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prefetch_batches: Option<u64>,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) status: bool,
}

/// Its other lines, of which each says one of these.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Request {
    #[serde(skip_serializing_if = "is_false")]
    pub(super) next_epoch: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) stop: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ack: Option<u64>,
}

/// A line of the server.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Reply {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) protocol: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) consumers: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) consumer: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) epoch: Option<u64>,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) end: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) stopped: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) batches: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rows: Option<u64>,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) finished: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<Vec<ConsumerStatus>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<String>,
}

/// How a consumer stands.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ConsumerStatus {
    pub(super) consumer: u64,
    pub(super) state: String,
    pub(super) waits_for: String,
    pub(super) epoch: Option<u64>,
    pub(super) window: Option<u64>,
    pub(super) rows: u64,
    pub(super) waited_ms: u64,
    pub(super) user_ms: u64,
    pub(super) buffered_bytes: u64,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// An address at which splits may be served.
pub(super) fn of_this_machine(address: &str) -> Result<Address> {
    let parsed: Address = address.parse()?;
    match parsed.is_of_this_machine() {
        true if parsed.is_encrypted() => {
            plan_err!("splits are served at unix:PATH or tcp:127.0.0.1:PORT, not {parsed}")
        }
        true => Ok(parsed),
        false => plan_err!("splits are served on this machine alone, at 127.0.0.1 or [::1], not {parsed}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_stay_on_the_machine() {
        assert!(of_this_machine("tcp:[::1]:80").is_ok());
        for address in ["tcp:0.0.0.0:1", "tcp:10.0.0.1:1"] {
            let error = of_this_machine(address).unwrap_err().to_string();
            assert!(error.contains("on this machine alone"), "{error}");
        }
        assert!(of_this_machine("tls:127.0.0.1:1").is_err());
    }
}
