//! Operators do not run far ahead of those who take their blocks.

use super::super::op::OpView;
use super::BackpressurePolicy;

/// The part of its bytes that an operator may use whatever its consumer does.
const PLENTY: f64 = 0.5;

/// Ray's `DownstreamCapacityBackpressurePolicy`: holds an operator back when the blocks that wait for its consumer are
/// more than `ratio` times those that the consumer works on.
#[derive(Debug, Clone, Copy)]
pub struct DownstreamCapacity {
    ratio: f64,
}

impl Default for DownstreamCapacity {
    fn default() -> Self {
        Self { ratio: 2.0 }
    }
}

impl DownstreamCapacity {
    /// With another ratio than 2.
    pub fn with_ratio(ratio: f64) -> Self {
        Self { ratio }
    }

    fn is_ahead(&self, op: OpView<'_>) -> bool {
        let taken = op.taken_bytes();
        !op.feeds_all_to_all()
            && taken > 0
            && op.queued_bytes() as f64 / taken as f64 > self.ratio
            && op.utilization() > PLENTY
    }
}

impl BackpressurePolicy for DownstreamCapacity {
    fn name(&self) -> &'static str {
        "DownstreamCapacity"
    }

    fn can_start(&self, op: OpView<'_>) -> bool {
        !self.is_ahead(op)
    }

    fn output_bytes(&self, op: OpView<'_>) -> Option<u64> {
        self.is_ahead(op).then_some(0)
    }
}
