//! [`SplitServer`]: takes connections, and gives each the iterator of its consumer.

use std::sync::Arc;
use std::time::Duration;

use datafusion::common::{Result, exec_err, plan_err};
use parking_lot::Mutex;
use tokio::sync::watch;
use uuid::Uuid;

use super::lines::{ConsumerStatus, Hello, Reply, of_this_machine};
use super::session::{Connection, Session};
use crate::dataset::{Split, SplitIterator};
use crate::error::one_message;
use crate::runtime::Drivers;
use crate::wire::{Address, Listener, Opening};

/// How long a connection may take to say whose it is.
const GREETING: Duration = Duration::from_secs(10);
/// How long connections may take to close when everything has ended.
const FAREWELL: Duration = Duration::from_secs(10);

/// Gives the iterators of a split to other processes. Dropping it closes all connections.
#[derive(Debug)]
pub struct SplitServer {
    address: Address,
    seats: Arc<Seats>,
    open: watch::Receiver<usize>,
    _accepts: Drivers<()>,
}

/// The iterators that no connection has.
#[derive(Debug)]
struct Seats {
    split: Arc<Split>,
    key: Option<String>,
    waiting: Mutex<Vec<Option<SplitIterator>>>,
    /// How many connections are open.
    open: watch::Sender<usize>,
}

impl SplitServer {
    /// Serves the iterators of one split at `unix:PATH`, a socket that nobody else may open, or `tcp:127.0.0.1:PORT`,
    /// where port 0 takes a free one.
    ///
    /// # Errors
    ///
    /// Where there are no iterators, the address is none or not of this machine, or somebody is there already.
    pub async fn bind(address: &str, iterators: Vec<SplitIterator>) -> Result<Self> {
        let Some(first) = iterators.first() else {
            return plan_err!("a server needs at least 1 iterator of a split, got 0");
        };
        let split = Arc::clone(first.split());
        let mut waiting: Vec<Option<SplitIterator>> = (0..split.consumers()).map(|_| None).collect();
        for iterator in iterators {
            if !Arc::ptr_eq(iterator.split(), &split) {
                return plan_err!("a server serves the iterators of one split, and got those of several");
            }
            let index = iterator.index();
            waiting[index] = Some(iterator);
        }
        let (listener, address) = of_this_machine(address)?.listen(None).await?;
        let key = address.needs_key().then(|| Uuid::new_v4().simple().to_string());
        let (open, seen) = watch::channel(0);
        let seats = Arc::new(Seats { split, key, waiting: Mutex::new(waiting), open });
        let accepts = Drivers::start([accept(listener, Arc::clone(&seats))]);
        Ok(Self { address, seats, open: seen, _accepts: accepts })
    }

    /// Where clients connect: with the port, where a free one was asked for.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// What clients have to know, over TCP.
    pub fn key(&self) -> Option<&str> {
        self.seats.key.as_deref()
    }

    /// Waits until all consumers have come and gone.
    ///
    /// # Errors
    ///
    /// Where the dataset has failed, or a consumer was lost; when all clients were told.
    pub async fn finished(&self) -> Result<()> {
        let ended = self.seats.split.over().await;
        // Those who are there and listen hear of it.
        let mut open = self.open.clone();
        let _all_closed = tokio::time::timeout(FAREWELL, open.wait_for(|open| *open == 0)).await;
        ended
    }
}

/// Takes connections, each in a driver of its own.
async fn accept(listener: Listener, seats: Arc<Seats>) -> Result<()> {
    let mut sessions = Drivers::<()>::none();
    loop {
        tokio::select! {
            // A connection that breaks is the client's to notice.
            opening = listener.accept() => sessions.spawn(Open::of(&seats).serve(opening)),
            Some(_ended) = sessions.next() => {}
        }
    }
}

/// A connection that is open.
struct Open(Arc<Seats>);

impl Open {
    fn of(seats: &Arc<Seats>) -> Self {
        seats.open.send_modify(|open| *open += 1);
        Self(Arc::clone(seats))
    }

    async fn serve(self, opening: Opening) -> Result<()> {
        let greeted = async { Connection::greeted(opening.await?).await };
        let Ok(greeted) = tokio::time::timeout(GREETING, greeted).await else { return Ok(()) };
        let Some((mut connection, hello)) = greeted? else { return Ok(()) };
        let taken = match self.0.admit(&hello) {
            Ok(None) => return connection.say(&self.0.status()).await,
            Ok(Some(iterator)) => iterator,
            Err(e) => return connection.say(&Reply { error: Some(one_message(&e)), ..Reply::default() }).await,
        };
        let mut iterator = taken;
        let mut session = Session::new(connection, &iterator, &hello);
        match session.serve(&mut iterator).await {
            // It is not there any more, whether or not the client hears so.
            true => drop(iterator),
            // Nothing has happened to it: somebody else may have it.
            false => {
                let index = iterator.index();
                self.0.waiting.lock()[index] = Some(iterator);
            }
        }
        session.close().await;
        Ok(())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.send_modify(|open| *open -= 1);
    }
}

impl Seats {
    /// The iterator that a client asks for; `None` where it asks how things stand.
    fn admit(&self, hello: &Hello) -> Result<Option<SplitIterator>> {
        if self.key.is_some() && self.key != hello.key {
            return exec_err!("the key is not that of the server");
        }
        if hello.status {
            return Ok(None);
        }
        let (n, Some(consumer)) = (self.split.consumers(), hello.consumer) else {
            return exec_err!("the first line says which consumer it is");
        };
        if consumer >= n {
            return exec_err!("the split has {n} consumers, 0 to {}, and none with number {consumer}", n - 1);
        }
        let waiting = self.waiting.lock()[consumer].take();
        waiting.map_or_else(|| SplitIterator::rejoining(&self.split, consumer), Ok).map(Some)
    }

    /// How all consumers stand.
    fn status(&self) -> Reply {
        let waiting: Vec<bool> = self.waiting.lock().iter().map(Option::is_some).collect();
        let statuses = self.split.statuses().into_iter().zip(waiting).map(|(status, is_waiting)| ConsumerStatus {
            consumer: status.consumer,
            state: if is_waiting { "not connected".to_owned() } else { status.state.to_owned() },
            waits_for: status.waits_for,
            epoch: status.epoch,
            window: status.window,
            rows: status.rows,
            waited_ms: status.waited.as_millis() as u64,
            user_ms: status.user.as_millis() as u64,
            buffered_bytes: status.buffered_bytes,
        });
        let token = self.split.token().ok().map(|token| token.to_string());
        Reply { status: Some(statuses.collect()), token, ..Reply::default() }
    }
}
