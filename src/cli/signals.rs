//! Signals that ask the tool to stop.

use std::fmt;

/// A signal that ends what runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// Ctrl-C.
    Interrupt,
    /// The terminal is gone.
    #[cfg_attr(not(unix), expect(dead_code, reason = "there is no such signal"))]
    Hangup,
    /// Somebody asks the process to end.
    #[cfg_attr(not(unix), expect(dead_code, reason = "there is no such signal"))]
    Terminate,
}

impl Stop {
    /// What a shell says of a process that such a signal has ended: 128 and the number of the signal.
    pub(super) fn exit_code(self) -> u8 {
        match self {
            Self::Hangup => 128 + 1,
            Self::Interrupt => 128 + 2,
            Self::Terminate => 128 + 15,
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interrupt => "cancelled",
            Self::Hangup => "cancelled, since the terminal was closed",
            Self::Terminate => "cancelled, since the process was asked to end",
        })
    }
}

/// Ends when the process is asked to stop.
pub(super) async fn stopped() -> Stop {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let signals = (signal(SignalKind::terminate()), signal(SignalKind::hangup()));
        if let (Ok(mut terminate), Ok(mut hangup)) = signals {
            return tokio::select! {
                _ = tokio::signal::ctrl_c() => Stop::Interrupt,
                _ = terminate.recv() => Stop::Terminate,
                _ = hangup.recv() => Stop::Hangup,
            };
        }
    }
    if tokio::signal::ctrl_c().await.is_err() {
        // Without signals nothing can stop it.
        std::future::pending::<()>().await;
    }
    Stop::Interrupt
}
