//! What drivers and executors say to each other, in lines of JSON.

use std::pin::pin;
use std::time::Duration;

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, BufReader, ReadHalf, WriteHalf, split};
use tokio::time::timeout;

use super::credentials::{Credentials, Reach, Token};
use crate::physical::{ExecutorStatus, Extent, RowRange, StagePrint, TaskRows, WritePlace};
use crate::wire::{Address, Duplex, read_line_within, write_line};

/// The version of what is said.
pub(super) const PROTOCOL: u64 = 7;
/// Both sides plan alike if they are of the same version.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Bytes of a call, with the statements of a session, or of a reply, with keys of rows.
pub(super) const CALL_BYTES: u64 = 16 << 20;
/// How long it may take to reach an executor, and until it says how it is.
pub(super) const SOON: Duration = Duration::from_secs(5);
/// How long it may take to agree on how to talk: shorter than an executor waits for that.
const OPENING: Duration = Duration::from_secs(9);
/// So often an executor says that it lives to whoever waits for it, or has a query there.
pub(super) const BEAT: Duration = Duration::from_secs(2);
/// It is lost when it has said nothing for so many times this long. Whoever listens may have been held up itself, so
/// that what was said comes late: it listens anew each time.
const LISTENED: Duration = Duration::from_secs(3);
const LISTENS: u32 = 5;

/// How long a driver may take to hang up when it was told all.
const FAREWELL: Duration = Duration::from_secs(10);

/// The first line of a driver.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) protocol: u64,
    pub(super) version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<Token>,
}

/// The second one: what the connection is for.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Call {
    /// A query begins, which lasts as long as the connection. One line is the answer; before and behind it others say
    /// that the executor lives. Behind [`Begin`] it gets its memory, and another line says that it has.
    Prepare(Prepare),
    /// One line says how the executor is.
    Status,
    /// Tasks are to run. A line is the answer, an Arrow IPC stream, and another line behind it.
    Run(Run),
    /// Tasks below an exchange are to run, and their rows to be kept. A line is the answer.
    Map(Map),
    /// Rows that are kept are asked for, as another executor does. The answer is as for tasks.
    Fetch(Fetch),
    /// Files are to be written to a directory of the driver. One line says whether they can be.
    See(See),
}

/// A query.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Prepare {
    /// Options of the session that asks.
    pub(super) settings: Vec<(String, String)>,
    /// Statements that say what names mean.
    pub(super) definitions: Vec<String>,
    pub(super) statement: String,
    /// The stages that may run elsewhere.
    pub(super) stages: Vec<StagePrint>,
}

/// A query that was planned is to get its memory. Drivers ask all executors in the same order for that, one after the
/// other: two of them that each had one executor, and waited for that of the other, would wait for ever.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Begin {}

/// Tasks of a stage.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) query: String,
    pub(super) stage: StagePrint,
    pub(super) source: Source,
    /// Rows that are there already.
    pub(super) skip: u64,
    /// Where files go, if the stage writes such; otherwise its rows are sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) write: Option<Write>,
}

/// Where tasks put their files.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Write {
    pub(super) place: WritePlace,
    /// Bytes of the rows of one.
    pub(super) target_bytes: usize,
    /// No two attempts are called so.
    pub(super) attempt: u64,
    /// Where the tasks stand among those of the whole stage.
    pub(super) within: usize,
}

/// Where an executor may write.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct See {
    pub(super) place: WritePlace,
    /// How a file may be called that nobody else makes.
    pub(super) attempt: u64,
}

/// Where tasks have their rows from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Source {
    pub(super) part: Part,
    /// Exchanges below, and who keeps their rows.
    pub(super) exchanges: Vec<Exchange>,
}

/// Which tasks these are.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Part {
    /// Of a read: the number of the first one, and of the one behind the last.
    Tasks(usize, usize),
    /// Of the rows with codes from the first to the last.
    Codes(u64, u64),
    /// Of rows in an order: the number of the first one, and what each of them has.
    Rows(usize, Vec<TaskRows>),
}

/// Who keeps the rows of an exchange.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Exchange {
    pub(super) number: usize,
    /// How many they are, where each task has all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) whole: Option<u64>,
    /// Each of them once.
    pub(super) held: Vec<Held>,
}

/// What one executor keeps of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Held {
    /// Where the executor is, as seen from the driver.
    pub(super) address: String,
    /// What it calls the query.
    pub(super) query: String,
    pub(super) units: Vec<u64>,
}

/// Tasks of the input of an exchange, as one unit.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Map {
    pub(super) query: String,
    pub(super) stage: StagePrint,
    pub(super) exchange: usize,
    /// No two are called so.
    pub(super) unit: u64,
    /// Which of the units of the exchange it is.
    pub(super) place: usize,
    pub(super) source: Source,
}

/// Rows of units that an executor keeps, unit by unit.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Fetch {
    pub(super) query: String,
    pub(super) stage: StagePrint,
    pub(super) exchange: usize,
    pub(super) units: Vec<u64>,
    pub(super) rows: RowRange,
    /// Whether their codes come with them.
    pub(super) with_codes: bool,
}

/// A line of an executor.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    /// The executor lives.
    Alive,
    /// Rows follow.
    Rows,
    /// It knows nothing of the query: the executor that has planned it is gone.
    Unknown,
    Prepared(Prepared),
    /// The query has its memory.
    Begun,
    Status(ExecutorStatus),
    /// All rows were sent: so many, with those that were skipped. For each exchange that they were made of, its number
    /// and the rows that it gave, where all of them were asked for.
    Done {
        rows: u64,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        taken: Vec<(usize, Option<u64>)>,
    },
    /// A unit of an exchange is kept.
    Mapped(Mapped),
    /// A directory is seen.
    Seen,
    /// An executor does not give what it keeps: where it is, and why.
    Missing(String, String),
    /// The one that says so cannot ask the executor at this address, and why. Others may.
    Barred(String, String),
    /// Why not.
    Failed(String),
    /// The call itself makes no sense.
    Refused(String),
}

/// What is known of a unit of an exchange.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Mapped {
    pub(super) extent: Extent,
    /// As with rows that were sent.
    pub(super) taken: Vec<(usize, Option<u64>)>,
}

/// How an executor has planned a query.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Prepared {
    pub(super) query: String,
    /// Tasks that it runs at once.
    pub(super) threads: usize,
    /// Bytes that blocks and operators may have.
    pub(super) memory: usize,
    /// Whom it can ask for rows.
    pub(super) reach: Reach,
    /// The stages that it has planned in the same way.
    pub(super) stages: Vec<StagePrint>,
    /// Why it could not plan it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    /// What went wrong with the first definition that it could not repeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) unrepeated: Option<String>,
}

/// A connection to an executor, or to a driver.
pub(super) struct Connection {
    pub(super) read: BufReader<ReadHalf<Box<dyn Duplex>>>,
    pub(super) write: WriteHalf<Box<dyn Duplex>>,
}

impl Connection {
    pub(super) fn of(stream: Box<dyn Duplex>) -> Self {
        let (read, write) = split(stream);
        Self { read: BufReader::new(read), write }
    }

    /// Connects to an executor, and says what the connection is for.
    pub(super) async fn call(address: &Address, credentials: &Credentials, call: &Call) -> Result<Self> {
        let silent = |_| exec_datafusion_err!("{address} does not answer");
        let opening = timeout(SOON, credentials.connect(address)).await.map_err(silent)??;
        let mut connection = Self::of(timeout(OPENING, opening).await.map_err(silent)??);
        let token = credentials.token_for(address);
        let hello = Hello { protocol: PROTOCOL, version: VERSION.to_owned(), token };
        let said = async {
            write_line(&mut connection.write, &hello).await?;
            write_line(&mut connection.write, call).await
        };
        timeout(LISTENED * LISTENS, said).await.map_err(silent)??;
        Ok(connection)
    }

    /// The next line of an executor that says so often that it lives.
    pub(super) async fn reply_of_living(&mut self) -> Result<Reply> {
        match listened(self.reply()).await {
            Some(reply) => reply,
            None => exec_err!("it has said nothing for {} s", (LISTENED * LISTENS).as_secs()),
        }
    }

    /// The next line of an executor.
    pub(super) async fn reply(&mut self) -> Result<Reply> {
        match read_line_within(&mut self.read, CALL_BYTES).await? {
            Some(reply) => Ok(reply),
            None => exec_err!("the connection was closed"),
        }
    }

    /// Says a line, and waits until the other side has hung up: a connection that is closed with lines that nobody has
    /// read is reset, and takes what was written with it.
    pub(super) async fn say_last(mut self, reply: &Reply) -> Result<()> {
        write_line(&mut self.write, reply).await?;
        let _in_time = timeout(FAREWELL, hung_up(&mut self.read)).await;
        Ok(())
    }
}

/// What the other side says, unless it is lost.
async fn listened<T>(said: impl Future<Output = T>) -> Option<T> {
    let mut said = pin!(said);
    for _ in 0..LISTENS {
        if let Ok(said) = timeout(LISTENED, &mut said).await {
            return Some(said);
        }
    }
    None
}

/// Waits until the other side has hung up.
pub(super) async fn hung_up(read: &mut (impl AsyncRead + Unpin)) {
    let mut some = [0; 256];
    while matches!(read.read(&mut some).await, Ok(bytes) if bytes > 0) {}
}
