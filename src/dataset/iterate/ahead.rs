//! [`Ahead`]: what a stream gives, some of it made before it is asked for.
//!
//! ```text
//! driver ───┐ whoever has time: the driver while there is room,
//!           ├──> source ──> ready (room for some) ──> consumer
//! consumer ─┘ the consumer when nothing is ready
//! ```
//!
//! A driver alone would make the consumer wait for a thread of the session that runs it, also where the next item takes
//! microseconds: all of them may be busy with reads and shuffles for milliseconds.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use datafusion::common::{Result, exec_datafusion_err};
use futures::Stream;
use futures::future::poll_fn;
use futures::stream::BoxStream;
use futures::task::{ArcWake, AtomicWaker, waker_ref};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::error::panic_text;
use crate::runtime::Drivers;

/// The items of a stream, of which some are ready. Dropping it stops the stream.
pub(super) struct Ahead<T> {
    shared: Arc<Shared<T>>,
    /// Where the source runs, also when a thread of somebody else polls it.
    handle: Handle,
    _driver: Drivers<()>,
}

struct Shared<T> {
    /// Until it has ended. Only who holds it adds to `ready`, and who holds both takes this one first.
    source: Mutex<Option<BoxStream<'static, Result<T>>>>,
    ready: Mutex<VecDeque<Result<T>>>,
    room: usize,
    wakers: Arc<Wakers>,
}

/// Who wants to know that there is something to do: an event of the source wakes both, as either may be busy.
#[derive(Default)]
struct Wakers {
    driver: AtomicWaker,
    consumer: AtomicWaker,
}

impl ArcWake for Wakers {
    fn wake_by_ref(wakers: &Arc<Self>) {
        wakers.consumer.wake();
        wakers.driver.wake();
    }
}

impl<T: Send + 'static> Ahead<T> {
    /// Makes up to `room` items of `source` ahead, on the session's threads.
    pub(super) fn of(source: BoxStream<'static, Result<T>>, room: usize) -> Self {
        let (source, wakers) = (Mutex::new(Some(source)), Arc::default());
        let shared = Arc::new(Shared { source, ready: Mutex::default(), room, wakers });
        let driven = Arc::clone(&shared);
        let driver = Drivers::start([poll_fn(move |context| driven.poll_driver(context))]);
        Self { shared, handle: Handle::current(), _driver: driver }
    }
}

impl<T> Shared<T> {
    /// The next item, of whoever holds the source.
    fn poll_source(&self, source: &mut Option<BoxStream<'static, Result<T>>>) -> Poll<Option<Result<T>>> {
        let Some(stream) = source else { return Poll::Ready(None) };
        let waker = waker_ref(&self.wakers);
        let polled = catch_unwind(AssertUnwindSafe(|| stream.as_mut().poll_next(&mut Context::from_waker(&waker))));
        let polled = polled.unwrap_or_else(|payload| {
            Poll::Ready(Some(Err(exec_datafusion_err!("a task panicked: {}", panic_text(payload.as_ref())))))
        });
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            *source = None;
        }
        polled
    }

    fn poll_driver(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.wakers.driver.register(context.waker());
        loop {
            if self.ready.lock().len() >= self.room {
                return Poll::Pending;
            }
            // The consumer has it, and wakes the driver behind that.
            let Some(mut source) = self.source.try_lock() else { return Poll::Pending };
            match self.poll_source(&mut source) {
                Poll::Ready(Some(item)) => self.ready.lock().push_back(item),
                Poll::Ready(None) => {
                    drop(source);
                    self.wakers.consumer.wake();
                    return Poll::Ready(Ok(()));
                }
                Poll::Pending => return Poll::Pending,
            }
            drop(source);
            self.wakers.consumer.wake();
        }
    }
}

impl<T: Send + 'static> Stream for Ahead<T> {
    type Item = Result<T>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let shared = &self.shared;
        shared.wakers.consumer.register(context.waker());
        if let Some(item) = shared.ready.lock().pop_front() {
            shared.wakers.driver.wake();
            return Poll::Ready(Some(item));
        }
        // The driver has it, and wakes the consumer behind that, or has nothing to do before the source wakes both.
        let Some(mut source) = shared.source.try_lock() else { return Poll::Pending };
        let item = match shared.ready.lock().pop_front() {
            Some(item) => Poll::Ready(Some(item)),
            None => {
                let _entered = self.handle.enter();
                shared.poll_source(&mut source)
            }
        };
        drop(source);
        shared.wakers.driver.wake();
        item
    }
}

impl<T> Drop for Ahead<T> {
    fn drop(&mut self) {
        // What the source holds goes now, and not when the driver has been cancelled, unless that is polling it.
        let source = self.shared.source.try_lock().and_then(|mut source| source.take());
        drop(source);
        self.shared.ready.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt, TryStreamExt, stream};
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;

    fn numbers(made: &Arc<AtomicUsize>, to: usize) -> BoxStream<'static, Result<usize>> {
        let made = Arc::clone(made);
        stream::iter(0..to)
            .then(move |number| {
                made.fetch_add(1, SeqCst);
                async move {
                    tokio::task::yield_now().await;
                    Ok(number)
                }
            })
            .boxed()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn items_come_once_and_in_order_whoever_makes_them() {
        for room in [1, 3] {
            let made = Arc::default();
            let items: Vec<usize> = Ahead::of(numbers(&made, 20_000), room).try_collect().await.unwrap();
            assert_eq!(items, (0..20_000).collect::<Vec<_>>());
        }
    }

    #[tokio::test]
    async fn as_many_are_made_ahead_as_there_is_room_for() {
        let made = Arc::default();
        let mut ahead = Ahead::of(numbers(&made, 100), 3);
        for taken in 0..10 {
            while made.load(SeqCst) < taken + 3 {
                tokio::task::yield_now().await;
            }
            // The driver has had its turns.
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            assert_eq!((made.load(SeqCst), ahead.next().await.unwrap().unwrap()), (taken + 3, taken));
        }
    }

    /// All threads of the session are held up.
    #[test]
    fn a_consumer_makes_what_no_thread_has_time_for() {
        let session = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let made = Arc::default();
        let entered = session.enter();
        let _held_up = Drivers::start([async move { held.recv().map_err(|e| exec_datafusion_err!("{e}")) }]);
        let ahead = Ahead::of(numbers(&made, 100), 1);
        drop(entered);
        let sum: usize = futures::executor::block_on(ahead.map(|item| item.unwrap()).fold(0, async |a, b| a + b));
        assert_eq!(sum, 4950);
        release.send(()).unwrap();
    }

    #[tokio::test]
    async fn a_panic_is_an_error_and_the_end() {
        let source = stream::iter(0..3).map(|number| if number == 1 { panic!("number {number}") } else { Ok(number) });
        let mut ahead = Ahead::of(source.boxed(), 1);
        assert_eq!(ahead.next().await.unwrap().unwrap(), 0);
        let error = ahead.next().await.unwrap().unwrap_err();
        assert!(error.to_string().contains("a task panicked: number 1"), "{error}");
        assert!(ahead.next().await.is_none());
    }
}
