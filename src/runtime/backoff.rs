//! Pauses between tries.

use std::time::Duration;

use crate::block::mix;

/// The pause after the `attempt`-th try, the first being 0: `first`, doubled with each more up to `longest`, and
/// between half of that and all of it by `salt`, so that those that failed together do not try together again.
pub(crate) fn backoff(attempt: usize, first: Duration, longest: Duration, salt: u64) -> Duration {
    let millis = (first * (1 << attempt.min(16))).min(longest).as_millis() as u64;
    let jitter = mix(salt ^ attempt as u64) % (millis / 2 + 1);
    Duration::from_millis(millis / 2 + jitter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let (first, longest) = (Duration::from_millis(100), Duration::from_secs(32));
        for (attempt, most) in [(0, 100), (1, 200), (5, 3200), (9, 32_000), (1000, 32_000)] {
            let pause = backoff(attempt, first, longest, 7).as_millis();
            assert!((most / 2..=most).contains(&pause), "{attempt}: {pause}");
        }
    }
}
