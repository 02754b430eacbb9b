//! Stacks for what walks through deep trees: parsing and planning of statements with long chains of operators.
//!
//! A thread of an application has 2 MiB. What needs more runs on a stack that is made for it, and costs as much memory
//! as it touches.

use std::pin::Pin;
use std::task::{Context, Poll};

/// Bytes that must be left of a stack.
const ROOM: usize = 24 << 20;
/// Bytes of a stack that is made because less is left.
const STACK: usize = 64 << 20;

/// Runs `work` with much room on the stack.
pub(crate) fn on_deep_stack<T>(work: impl FnOnce() -> T) -> T {
    stacker::maybe_grow(ROOM, STACK, work)
}

/// A future that always has much room on the stack.
#[derive(Debug)]
pub(crate) struct DeepStack<F>(Pin<Box<F>>);

impl<F> DeepStack<F> {
    pub(crate) fn new(future: F) -> Self {
        Self(Box::pin(future))
    }
}

impl<F: Future> Future for DeepStack<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        on_deep_stack(|| self.0.as_mut().poll(context))
    }
}
