//! [`MaxTree`].

/// Numbers, of which the next one that is above another is found in logarithmic time.
///
/// A binary tree in one array: node `i` has the larger number of nodes `2 i` and `2 i + 1`, and the numbers themselves
/// are its last level.
#[derive(Debug, Clone)]
pub(super) struct MaxTree {
    nodes: Vec<u32>,
    /// Nodes before the last level.
    inner: usize,
}

impl MaxTree {
    pub(super) fn new(numbers: &[u32]) -> Self {
        let inner = numbers.len().next_power_of_two();
        let mut nodes = vec![0; 2 * inner];
        nodes[inner..inner + numbers.len()].copy_from_slice(numbers);
        for node in (1..inner).rev() {
            nodes[node] = nodes[2 * node].max(nodes[2 * node + 1]);
        }
        Self { nodes, inner }
    }

    /// Bytes of a tree of so many numbers.
    pub(super) fn bytes(numbers: usize) -> usize {
        8 * numbers.next_power_of_two()
    }

    /// The place of the first number from place `from` on that is above `least`, if it is before place `end`.
    pub(super) fn next_above(&self, least: u32, from: usize, end: usize) -> Option<usize> {
        if from >= end {
            return None;
        }
        let mut node = self.inner + from;
        // Up, until a tree to the right has one; then down to its first.
        while self.nodes[node] <= least {
            // From the last node of a level there is nowhere to go.
            if (node + 1).is_power_of_two() {
                return None;
            }
            node += 1;
            node >>= node.trailing_zeros();
        }
        while node < self.inner {
            node *= 2;
            if self.nodes[node] <= least {
                node += 1;
            }
        }
        Some(node - self.inner).filter(|place| *place < end)
    }

    /// Makes a number 0, which is above none.
    pub(super) fn clear(&mut self, place: usize) {
        let mut node = self.inner + place;
        self.nodes[node] = 0;
        while node > 1 {
            node /= 2;
            self.nodes[node] = self.nodes[2 * node].max(self.nodes[2 * node + 1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_next_above_is_the_first_above(
            mut numbers in prop::collection::vec(0u32..8, 0..40),
            cleared in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let mut tree = MaxTree::new(&numbers);
            if !numbers.is_empty() {
                for cleared in cleared {
                    let place = cleared.index(numbers.len());
                    tree.clear(place);
                    numbers[place] = 0;
                }
            }
            for least in 0..8 {
                for from in 0..=numbers.len() {
                    for end in from..=numbers.len() {
                        let first = (from..end).find(|place| numbers[*place] > least);
                        prop_assert_eq!(tree.next_above(least, from, end), first);
                    }
                }
            }
        }
    }
}
