//! The blocks of a stage that nobody has taken yet, in the order of its tasks or as they come.

use std::collections::{BTreeMap, VecDeque};

/// Items of open tasks. In order, an item is given out when all tasks before its own have ended and given theirs.
#[derive(Debug)]
pub(crate) struct OutQueue<K, T> {
    ordered: bool,
    tasks: BTreeMap<K, Output<T>>,
    /// Keys of the items in the order in which they came.
    arrived: VecDeque<K>,
    items: usize,
}

#[derive(Debug)]
struct Output<T> {
    items: VecDeque<T>,
    ended: bool,
}

impl<K: Ord + Clone, T> OutQueue<K, T> {
    pub(crate) fn new(ordered: bool) -> Self {
        Self { ordered, tasks: BTreeMap::new(), arrived: VecDeque::new(), items: 0 }
    }

    /// A task begins. In order, no task with a smaller key may begin after it.
    pub(crate) fn begin(&mut self, task: K) {
        self.tasks.insert(task, Output { items: VecDeque::new(), ended: false });
    }

    /// An item of an open task.
    pub(crate) fn push(&mut self, task: &K, item: T) {
        if let Some(output) = self.tasks.get_mut(task) {
            output.items.push_back(item);
            self.items += 1;
            if !self.ordered {
                self.arrived.push_back(task.clone());
            }
        }
    }

    /// The task gives no more.
    pub(crate) fn end(&mut self, task: &K) {
        if let Some(output) = self.tasks.get_mut(task) {
            output.ended = true;
            if output.items.is_empty() {
                self.tasks.remove(task);
            }
        }
    }

    /// The next item, if it is there.
    pub(crate) fn pop(&mut self) -> Option<(K, T)> {
        let task = match self.ordered {
            true => self.tasks.first_key_value()?.0.clone(),
            false => self.arrived.pop_front()?,
        };
        let output = self.tasks.get_mut(&task)?;
        let item = output.items.pop_front()?;
        self.items -= 1;
        if output.ended && output.items.is_empty() {
            self.tasks.remove(&task);
        }
        Some((task, item))
    }

    /// Items of a task that nobody has taken.
    pub(crate) fn untaken(&self, task: &K) -> usize {
        self.tasks.get(task).map_or(0, |output| output.items.len())
    }

    /// Whether nothing can be given out before this task gives an item or ends.
    pub(crate) fn waits_for(&self, task: &K) -> bool {
        match self.ordered {
            true => self.tasks.first_key_value().is_some_and(|(key, output)| key == task && output.items.is_empty()),
            false => self.items == 0,
        }
    }

    /// Items that nobody has taken.
    pub(crate) fn items(&self) -> usize {
        self.items
    }

    /// Items that nobody has taken.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.items
    }

    /// Whether an item can be taken now.
    #[cfg(test)]
    pub(crate) fn is_ready(&self) -> bool {
        match self.ordered {
            true => self.tasks.first_key_value().is_some_and(|(_, output)| !output.items.is_empty()),
            false => self.items > 0,
        }
    }

    /// Whether there is neither an item nor an open task.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(ordered: bool) -> OutQueue<u32, &'static str> {
        let mut queue = OutQueue::new(ordered);
        (0..3).for_each(|task| queue.begin(task));
        queue
    }

    #[test]
    fn in_order_items_wait_for_those_of_earlier_tasks() {
        let mut queue = queue(true);
        queue.push(&1, "b");
        assert_eq!(queue.pop(), None);
        assert!(queue.waits_for(&0) && !queue.waits_for(&1) && !queue.is_ready());
        queue.push(&0, "a");
        assert_eq!(queue.pop(), Some((0, "a")));
        queue.end(&0);
        assert_eq!(queue.untaken(&1), 1);
        assert_eq!(queue.pop(), Some((1, "b")));
        queue.end(&1);
        queue.end(&2);
        assert!(queue.is_empty());
    }

    #[test]
    fn without_order_items_come_as_they_came() {
        let mut queue = queue(false);
        queue.push(&2, "c");
        queue.end(&2);
        queue.push(&0, "a");
        assert_eq!(queue.pop(), Some((2, "c")));
        assert_eq!(queue.pop(), Some((0, "a")));
        assert_eq!(queue.pop(), None);
        assert!(queue.waits_for(&0) && !queue.is_empty());
    }
}
