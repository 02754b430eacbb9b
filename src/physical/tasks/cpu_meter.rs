//! CPU time of many calls, most of which are short.

use std::time::Duration;

use cpu_time::ThreadTime;

/// A call that takes this long is worth asking the kernel for its CPU time.
const LONG: Duration = Duration::from_micros(50);
/// Of shorter calls one in so many is measured.
const SAMPLED: usize = 16;

/// Adds up the CPU time of the calling threads.
///
/// The clock of a thread is a call of the kernel, which takes as long as a short call. So it is read for calls after a
/// long one, and for some of the short ones; the others are taken to be like those that were measured.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CpuMeter {
    calls: usize,
    last: Duration,
    /// Wall and CPU time of calls that were measured.
    wall: Duration,
    cpu: Duration,
    /// Wall time of the others.
    unmeasured: Duration,
}

impl CpuMeter {
    /// A call begins. The result has to be given to [`Self::end`], on the same thread.
    pub(crate) fn begin(&self) -> Option<ThreadTime> {
        (self.last >= LONG || self.calls.is_multiple_of(SAMPLED)).then(ThreadTime::now)
    }

    /// The call has ended, after `wall`.
    pub(crate) fn end(&mut self, begun: Option<ThreadTime>, wall: Duration) {
        self.calls += 1;
        self.last = wall;
        match begun {
            Some(begun) => {
                self.wall += wall;
                self.cpu += begun.elapsed();
            }
            None => self.unmeasured += wall,
        }
    }

    /// CPU time of all calls.
    pub(crate) fn total(&self) -> Duration {
        let part = if self.wall.is_zero() { 0.0 } else { self.cpu.as_secs_f64() / self.wall.as_secs_f64() };
        self.cpu + self.unmeasured.mul_f64(part.min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_calls_are_like_those_that_were_measured() {
        let short = Duration::from_micros(2);
        let mut meter = CpuMeter::default();
        let mut measured = 0;
        for _ in 0..32 {
            let begun = meter.begin();
            measured += usize::from(begun.is_some());
            meter.end(begun, short);
        }
        assert_eq!((measured, meter.unmeasured), (2, short * 30));
        assert!(meter.total() <= meter.cpu + short * 30);
        meter.end(None, LONG);
        assert!(meter.begin().is_some());
    }
}
