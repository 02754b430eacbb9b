//! Queries over data that is larger than memory, and a harness that measures from outside what a process needs for
//! them: the tool runs as a child, and the kernel says how large it was. `tests/integration/memory/mod.rs` runs a part
//! of them as tests, `benches/memory.rs` all of them at several limits.

#[path = "more_scenarios.rs"]
mod more_scenarios;

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How often the size of a running process is read.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A run that takes longer hangs, and is ended.
const LONGEST_RUN: Duration = Duration::from_secs(30 * 60);

/// A run that takes this much above its limit is ended too, before it takes the machine's memory from others.
const LARGEST_OVERHEAD: u64 = 2 << 30;

/// What the tool says when it does not start a query because the limit is too low for it.
const REFUSAL: &str = "needs at least";

/// Operators that keep what they need in memory, whatever the limit: windows over whole partitions, and aggregates
/// whose values grow with their groups.
const UNSPILLABLE: [&str; 2] = ["WindowAggExec", "FinalHashAggregateStream"];

/// Lines of a result that are kept to be shown when results differ.
const SHOWN_LINES: usize = 4;

const MIB: u64 = 1 << 20;

/// How much data there is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// Bytes of each input in memory.
    pub(crate) bytes: u64,
    /// Bytes of text in each row. Longer texts are fewer rows, and less work.
    pub(crate) text: u64,
    /// Files of the input that has many.
    pub(crate) files: u64,
    /// The scale factor of the TPC-H tables; none: no TPC-H queries.
    pub(crate) tpch: Option<u64>,
}

/// A directory of files that scenarios read.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    /// `{name}` in a statement is the directory's path.
    name: &'static str,
    /// The query that the files are written from, without a limit.
    query: String,
    /// What comes behind STORED AS.
    format: &'static str,
}

impl Input {
    fn parquet(name: &'static str, query: String) -> Self {
        Self { name, query, format: "PARQUET" }
    }

    /// Another name for other rows, so that a directory is only reused for the same.
    fn directory(&self, data: &Path) -> PathBuf {
        let mut hasher = DefaultHasher::new();
        (&self.query, self.format).hash(&mut hasher);
        data.join(format!("{}-{:016x}", self.name, hasher.finish()))
    }
}

/// What makes two results equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// The same lines in the same order.
    Ordered,
    /// The same lines, each as often.
    Unordered,
}

/// Something that a session does with more data than memory.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    /// What filters and tables call it.
    pub(crate) name: String,
    /// What is read.
    pub(crate) inputs: Vec<Input>,
    /// What runs within the limit. `{name}` is the directory of an input, `{out}` one that is written to.
    pub(crate) statements: String,
    /// A query over `{out}` whose rows belong to the result. It runs without a limit, and is not measured.
    pub(crate) check: Option<&'static str>,
    /// How the result is compared with that of a run without a limit.
    pub(crate) comparison: Comparison,
}

/// All scenarios. Fails when the TPC-H queries cannot be read.
pub(crate) fn scenarios(scale: Scale) -> io::Result<Vec<Scenario>> {
    let mut all = vec![scenario("nothing", &[], "SELECT 1 AS one")];
    let rows = rows(scale);
    all.extend(over_rows(&rows));
    all.extend(more_scenarios::of_several_reads(&rows));
    all.extend(more_scenarios::of_many_values(&rows));
    all.extend(over_other_shapes(scale));
    if let Some(factor) = scale.tpch {
        all.extend(tpch(factor)?);
    }
    Ok(all)
}

fn scenario(name: &str, inputs: &[&Input], statements: &str) -> Scenario {
    Scenario {
        name: name.to_owned(),
        inputs: inputs.iter().map(|input| (*input).clone()).collect(),
        statements: statements.to_owned(),
        check: None,
        comparison: Comparison::Unordered,
    }
}

/// A scenario that writes `{out}`; its files are compared row by row in the order of the rows.
fn writing(name: &str, inputs: &[&Input], query: &str) -> Scenario {
    Scenario {
        check: Some("SELECT row_hash FROM map_batches(read_parquet('{out}/'), 'row_hash')"),
        comparison: Comparison::Ordered,
        ..scenario(name, inputs, &format!("COPY ({query}) TO '{{out}}/' STORED AS PARQUET"))
    }
}

/// Rows of numbers and a text. `k` is a permutation of `id`, `g` has 1,000 values.
fn rows(scale: Scale) -> Input {
    let n = scale.bytes / (scale.text + 52);
    let repeats = (scale.text.saturating_sub(32) / 8).max(1);
    let query = format!(
        "SELECT id, k, k % 1000 AS g, id * 48271 % 1000003 AS v, \
         CAST(id * 48271 % 1000003 AS DECIMAL(15, 2)) / 100 AS price, \
         arrow_cast(h || repeat(substr(h, 1, 8), {repeats}), 'Utf8') AS s \
         FROM (SELECT id, id * 2654435761 % {n} AS k, md5(CAST(id AS VARCHAR)) AS h FROM range({n}))",
    );
    Input::parquet("rows", query)
}

/// Rows of numbers alone, a third as many distinct `g` as rows. In 8 GiB these are 70 million.
fn numbers(scale: Scale) -> Input {
    let n = scale.bytes / 40;
    let query = format!(
        "SELECT id, id * 2654435761 % {n} % {} AS g, id * 48271 % 1000003 AS v, \
         CAST(id * 48271 % 1000003 AS DECIMAL(15, 2)) / 100 AS price FROM range({n})",
        (n / 3).max(1)
    );
    Input::parquet("numbers", query)
}

fn over_rows(rows: &Input) -> Vec<Scenario> {
    let csv = Input { name: "csv", format: "CSV", ..rows.clone() };
    let joined = "SELECT count(*) AS n, sum(a.v) AS a, sum(b.v) AS b, sum(a.price + b.price) AS price, \
                  min(a.s || b.s) AS s FROM read_parquet('{rows}/') AS a";
    let half = "(SELECT * FROM read_parquet('{rows}/') WHERE v % 2 = 0)";
    let rows = &[rows];
    vec![
        writing("read_map_write_parquet", rows, "SELECT * FROM map_batches(read_parquet('{rows}/'), 'identity')"),
        Scenario {
            check: Some("SELECT row_hash FROM map_batches(read_csv('{out}/'), 'row_hash')"),
            comparison: Comparison::Ordered,
            ..scenario(
                "read_map_write_csv",
                &[&csv],
                "COPY (SELECT * FROM map_batches(read_csv('{csv}/'), 'identity')) TO '{out}/' STORED AS CSV",
            )
        },
        scenario(
            "materialize",
            rows,
            "CREATE TABLE t AS SELECT * FROM read_parquet('{rows}/');
             SELECT count(*) AS n, sum(v) AS v, sum(price) AS price, min(s) AS s FROM t;
             SELECT sum(place * v) AS ordered FROM (SELECT v, row_number() OVER () AS place FROM t)",
        ),
        scenario(
            "change_table",
            rows,
            "CREATE TABLE t AS SELECT id, v, s FROM read_parquet('{rows}/') WHERE false;
             INSERT INTO t SELECT id, v, s FROM read_parquet('{rows}/');
             UPDATE t SET v = v + 1 WHERE id % 2 = 0;
             DELETE FROM t WHERE id % 3 = 0;
             SELECT count(*) AS n, sum(v) AS v, min(s) AS s FROM t;
             SELECT sum(place * v) AS ordered FROM (SELECT v, row_number() OVER () AS place FROM t)",
        ),
        scenario(
            "random_shuffle",
            rows,
            "SELECT count(*) AS n, sum(place * v) AS ordered, min(s) AS first, max(s) AS last
             FROM (SELECT v, s, row_number() OVER () AS place FROM random_shuffle(read_parquet('{rows}/'), seed => 7))",
        ),
        writing("random_shuffle_write", rows, "SELECT * FROM random_shuffle(read_parquet('{rows}/'), seed => 7)"),
        writing("repartition_write", rows, "SELECT * FROM repartition(read_parquet('{rows}/'), 64)"),
        writing("sort_write", rows, "SELECT * FROM read_parquet('{rows}/') ORDER BY v, id"),
        scenario(
            "group_by_texts",
            rows,
            "SELECT count(*) AS groups, sum(n) AS n, sum(v) AS v, min(s) AS s
             FROM (SELECT s, count(*) AS n, sum(v) AS v FROM read_parquet('{rows}/') GROUP BY s)",
        ),
        scenario(
            "array_agg",
            rows,
            "SELECT count(*) AS groups, sum(array_length(ids)) AS n, sum(ids[1]) AS ids, min(texts[1]) AS s
             FROM (SELECT g, array_agg(id ORDER BY id) AS ids, array_agg(s ORDER BY id) AS texts
                   FROM read_parquet('{rows}/') WHERE v % 8 = 0 GROUP BY g)",
        ),
        scenario("join", rows, &format!("{joined} JOIN {half} AS b ON a.k = b.id")),
        scenario("left_join", rows, &format!("{joined} LEFT JOIN {half} AS b ON a.k = b.id")),
        scenario(
            "anti_join",
            rows,
            "SELECT count(*) AS n, sum(a.v) AS v, min(a.s) AS s FROM read_parquet('{rows}/') AS a
             WHERE NOT EXISTS (SELECT 1 FROM read_parquet('{rows}/') AS b WHERE b.s = a.s AND b.v % 2 = 0)",
        ),
        scenario(
            "window_running",
            rows,
            "SELECT count(*) AS n, sum(place * v) AS ordered, sum(total) AS total, min(s) AS s
             FROM (SELECT v, s, row_number() OVER w AS place, sum(price) OVER w AS total
                   FROM read_parquet('{rows}/') WINDOW w AS (PARTITION BY g ORDER BY id))",
        ),
        scenario(
            "window_whole_partition",
            rows,
            "SELECT count(*) AS n, sum(total) AS total, min(s) AS s
             FROM (SELECT s, sum(price) OVER (PARTITION BY g) AS total FROM read_parquet('{rows}/') WHERE v % 4 = 0)",
        ),
        scenario(
            "views",
            rows,
            "CREATE TABLE t AS SELECT id, whole, substr(whole, 3, 24) AS part
             FROM (SELECT id, arrow_cast(s, 'Utf8View') AS whole FROM read_parquet('{rows}/')) WHERE id % 4 > 0;
             SELECT row_hash FROM map_batches(random_shuffle(t, seed => 7), 'row_hash')",
        ),
    ]
}

fn over_other_shapes(scale: Scale) -> Vec<Scenario> {
    let numbers = numbers(scale);
    let row = scale.text + 52;
    let text = format!("repeat(md5(CAST(id AS VARCHAR)), {})", (scale.text / 128).max(1));
    let columns: Vec<String> = (0..1000).map(|i| format!("id * {i} % 1000003 AS c{i}")).collect();
    let wide = format!("SELECT {} FROM range({})", columns.join(", "), scale.bytes / 8000);
    let huge = scale.bytes / (16 * MIB);
    let huge = format!(
        "SELECT id, arrow_cast(repeat(md5(CAST(id AS VARCHAR)), {}), 'Utf8') AS s \
         FROM range({huge}, override_num_blocks => {})",
        16 * MIB / 32,
        (huge / 4).max(1)
    );
    let long = format!(
        "SELECT id, arrow_cast(repeat(md5(CAST(id AS VARCHAR)), {}), 'Utf8') AS s FROM range({}, override_num_blocks => {})",
        MIB / 32,
        scale.bytes / MIB,
        (scale.bytes / (16 * MIB)).max(1)
    );
    let nested = format!(
        "SELECT id, make_array({text}, NULL, {text}) AS tags, \
         named_struct('at', id, 'place', named_struct('label', {text})) AS point, \
         make_array(named_struct('at', id, 'note', {text}), named_struct('at', -id, 'note', '')) AS history \
         FROM range({})",
        scale.bytes / (row + 48)
    );
    let small = format!(
        "SELECT id, {text} AS a, {text} AS b, {text} AS c, {text} AS d FROM range({}, override_num_blocks => {})",
        scale.bytes / row,
        scale.files
    );
    let [wide, huge, long, nested, small] =
        [("wide", wide), ("huge", huge), ("long", long), ("nested", nested), ("small", small)]
            .map(|(name, query)| Input::parquet(name, query));
    vec![
        scenario(
            "group_by_numbers",
            &[&numbers],
            "SELECT count(*) AS groups, sum(n) AS n, sum(v) AS v, sum(price) AS price, max(last) AS last
             FROM (SELECT g, count(*) AS n, sum(v) AS v, sum(price) AS price, max(id) AS last
                   FROM read_parquet('{numbers}/') GROUP BY g)",
        ),
        writing("wide_rows", &[&wide], "SELECT * FROM random_shuffle(read_parquet('{wide}/'), seed => 7)"),
        writing("huge_rows", &[&huge], "SELECT * FROM random_shuffle(read_parquet('{huge}/'), seed => 7)"),
        writing("sort_long_texts", &[&long], "SELECT * FROM read_parquet('{long}/') ORDER BY s"),
        writing("nested", &[&nested], "SELECT * FROM random_shuffle(read_parquet('{nested}/'), seed => 7)"),
        writing(
            "many_files",
            &[&small],
            &format!("SELECT * FROM repartition(read_parquet('{{small}}/'), {})", scale.files),
        ),
    ]
}

/// The TPC-H queries over Parquet files.
fn tpch(factor: u64) -> io::Result<Vec<Scenario>> {
    let tables = ["region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem"]
        .map(|table| Input::parquet(table, format!("SELECT * FROM tpch('{table}', {factor})")));
    let view = |t: &Input| format!("CREATE VIEW {0} AS SELECT * FROM read_parquet('{{{0}}}/');\n", t.name);
    let views: String = tables.iter().map(view).collect();
    let tables: Vec<&Input> = tables.iter().collect();
    let queries = Path::new(env!("CARGO_MANIFEST_DIR")).join("sql/tpch");
    (1..=22)
        .map(|number| {
            let query = fs::read_to_string(queries.join(format!("q{number:02}.sql")))?;
            Ok(scenario(&format!("tpch_q{number:02}"), &tables, &format!("{views}{query}")))
        })
        .collect()
}

/// How a run within a limit ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The result is that of a run without a limit, and nothing is left in the spill directory.
    Ok,
    /// The tool said that the limit is too low, and did not start.
    Refused(String),
    /// The query ended with an error that names an operator which cannot spill, and what it would have needed.
    CannotSpill(String),
    /// Anything else.
    Failed(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok => write!(f, "ok"),
            Self::Refused(message) => write!(f, "refused: {message}"),
            Self::CannotSpill(message) => write!(f, "cannot spill: {message}"),
            Self::Failed(message) => write!(f, "FAILED: {message}"),
        }
    }
}

/// A run within a limit, beside the same without one.
#[derive(Debug, Clone)]
pub(crate) struct Measured {
    /// The scenario's name.
    pub(crate) scenario: String,
    /// The limit in bytes.
    pub(crate) limit: u64,
    /// The most bytes that the process had in memory at once.
    pub(crate) peak: u64,
    /// The same without a limit.
    pub(crate) peak_without_limit: u64,
    /// From the start of the process to its end.
    pub(crate) elapsed: Duration,
    /// The same without a limit.
    pub(crate) elapsed_without_limit: Duration,
    /// Bytes that blocks and operators wrote to disk, as the tool tells it.
    pub(crate) spilled: u64,
    /// How it ended.
    pub(crate) outcome: Outcome,
}

impl Measured {
    /// The head of a table of measurements.
    pub(crate) const HEAD: &str = "| scenario | limit | peak MiB | over the limit | without a limit, peak MiB | seconds \
                                   | without a limit, seconds | spilled MiB | outcome |\n\
                                   |---|---:|---:|---:|---:|---:|---:|---:|---|";

    /// By how many bytes the peak is above the limit; below it that is negative.
    pub(crate) fn overhead(&self) -> i64 {
        self.peak as i64 - self.limit as i64
    }
}

/// A line of the table.
impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| (bytes + MIB / 2) / MIB;
        // A bar would end the cell.
        let outcome = self.outcome.to_string().replace('|', "\\|");
        write!(
            f,
            "| {} | {} | {} | {:+} | {} | {:.1} | {:.1} | {} | {outcome} |",
            self.scenario,
            size(self.limit),
            mib(self.peak),
            (self.overhead() as f64 / MIB as f64).round(),
            mib(self.peak_without_limit),
            self.elapsed.as_secs_f64(),
            self.elapsed_without_limit.as_secs_f64(),
            mib(self.spilled),
        )
    }
}

/// Bytes as the options of the tool take them.
fn size(bytes: u64) -> String {
    match bytes {
        b if b.is_multiple_of(1 << 30) => format!("{}GiB", b >> 30),
        b if b.is_multiple_of(MIB) => format!("{}MiB", b / MIB),
        b => format!("{b}B"),
    }
}

/// Runs scenarios in child processes.
#[derive(Debug)]
pub(crate) struct Harness {
    tool: PathBuf,
    data: PathBuf,
    scratch: PathBuf,
    threads: Option<u16>,
    /// Runs without a limit that were made already, by the text of their statements.
    unlimited: HashMap<String, Run>,
}

impl Harness {
    /// Inputs are kept in the directory `data`; `scratch` is for what runs write. Without `threads` the tool takes as
    /// many as the machine has.
    pub(crate) fn new(tool: &Path, data: &Path, scratch: &Path, threads: Option<u16>) -> Self {
        Self { tool: tool.into(), data: data.into(), scratch: scratch.into(), threads, unlimited: HashMap::new() }
    }

    /// Runs a scenario within a limit, and without one unless that was done before. Fails when there is nothing to
    /// measure: without input, or when the run without a limit fails.
    pub(crate) fn measure(&mut self, scenario: &Scenario, limit: u64) -> io::Result<Measured> {
        for input in &scenario.inputs {
            self.prepare(input)?;
        }
        let text = scenario.inputs.iter().fold(scenario.statements.clone(), |text, input| {
            text.replace(&format!("{{{}}}", input.name), &input.directory(&self.data).display().to_string())
        });
        let expected = match self.unlimited.remove(&text) {
            Some(run) => run,
            None => self.run(&text, scenario.check, None)?,
        };
        if let Some(problem) = &expected.problem {
            return Err(io::Error::other(format!("{} without a limit: {problem}", scenario.name)));
        }
        let run = self.run(&text, scenario.check, Some(limit))?;
        let outcome = match &run.problem {
            Some(problem) if run.exit_code == Some(1) && problem.contains(REFUSAL) => Outcome::Refused(problem.clone()),
            Some(problem)
                if run.exit_code == Some(1) && UNSPILLABLE.iter().any(|o| problem.contains(&format!("{o}["))) =>
            {
                let what_it_says = problem.split(". Raise").next().unwrap_or(problem);
                Outcome::CannotSpill(what_it_says.to_owned())
            }
            Some(problem) => Outcome::Failed(problem.clone()),
            None => match run.result.difference(&expected.result, scenario.comparison) {
                Some(difference) => Outcome::Failed(difference),
                None => Outcome::Ok,
            },
        };
        let measured = Measured {
            scenario: scenario.name.clone(),
            limit,
            peak: run.peak,
            peak_without_limit: expected.peak,
            elapsed: run.elapsed,
            elapsed_without_limit: expected.elapsed,
            spilled: run.spilled,
            outcome,
        };
        self.unlimited.insert(text, expected);
        Ok(measured)
    }

    /// Writes an input unless it is there. It appears whole or not at all.
    fn prepare(&self, input: &Input) -> io::Result<()> {
        let directory = input.directory(&self.data);
        if directory.exists() {
            return Ok(());
        }
        fs::create_dir_all(&self.data)?;
        let unfinished = directory.with_extension("unfinished");
        remove(&unfinished)?;
        let statement = format!("COPY ({}) TO '{}/' STORED AS {}", input.query, unfinished.display(), input.format);
        match self.run(&statement, None, None)?.problem {
            None => fs::rename(&unfinished, &directory),
            Some(problem) => Err(io::Error::other(format!("the input {}: {problem}", input.name))),
        }
    }

    /// Runs statements, and then the check of what they have written.
    fn run(&self, statements: &str, check: Option<&str>, limit: Option<u64>) -> io::Result<Run> {
        let out = self.scratch.join("out");
        remove(&out)?;
        let in_place = |text: &str| text.replace("{out}", &out.display().to_string());
        let mut run = self.run_once(&in_place(statements), limit)?;
        if let Some(check) = check.filter(|_| run.problem.is_none()) {
            let checked = self.run_once(&in_place(check), None)?;
            run.problem = checked.problem.map(|problem| format!("what was written cannot be read: {problem}"));
            run.result.append(checked.result);
        }
        remove(&out)?;
        Ok(run)
    }

    fn run_once(&self, statements: &str, limit: Option<u64>) -> io::Result<Run> {
        let spill = self.scratch.join("spill");
        remove(&spill)?;
        fs::create_dir_all(&spill)?;
        let mut command = Command::new(&self.tool);
        command.args(["sql", statements, "--format", "csv", "--stats", "--no-progress", "--spill-dir"]).arg(&spill);
        if let Some(limit) = limit {
            command.args(["--memory", &size(limit)]);
        }
        if let Some(threads) = self.threads {
            command.args(["--threads", &threads.to_string()]);
        }
        // Settings of whoever runs this would change what is measured.
        let settings = |name: &str| name.starts_with("BLOCKYARD_") || name.starts_with("DATAFUSION_");
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(settings)) {
            command.env_remove(name);
        }
        let most = machine_memory("MemAvailable:")? / 4 * 3;
        let mut run = watch(command, limit.map_or(most, |limit| most.min(limit + LARGEST_OVERHEAD)))?;
        let left = fs::read_dir(&spill)?.count();
        if left > 0 && run.problem.is_none() {
            run.problem = Some(format!("{left} entries are left in the spill directory"));
        }
        remove(&spill)?;
        Ok(run)
    }
}

/// Removes a directory if it is there.
fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// A process that has ended.
#[derive(Debug, Clone)]
struct Run {
    exit_code: Option<i32>,
    peak: u64,
    elapsed: Duration,
    spilled: u64,
    result: Lines,
    /// Why there is no result.
    problem: Option<String>,
}

/// Runs a command to its end, and watches how large it gets. It is ended when it has more than `most` bytes.
fn watch(mut command: Command, most: u64) -> io::Result<Run> {
    let started = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (Some(stdout), Some(mut stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(io::Error::other("a process without output"));
    };
    thread::scope(|scope| {
        let lines = scope.spawn(move || Lines::read(stdout));
        let messages = scope.spawn(move || {
            let mut bytes = Vec::new();
            stderr.read_to_end(&mut bytes).map(|_| String::from_utf8_lossy(&bytes).into_owned())
        });
        let (status, peak) = poll(&mut child, started, most)?;
        let elapsed = started.elapsed();
        let gone = |_| io::Error::other("a thread that reads output has panicked");
        let (result, messages) = (lines.join().map_err(gone)??, messages.join().map_err(gone)??);
        let (exit_code, problem) = match status {
            Ok(status) if status.success() => (status.code(), None),
            Ok(status) => (status.code(), Some(error_message(&messages).unwrap_or_else(|| status.to_string()))),
            Err(reason) => (None, Some(reason)),
        };
        Ok(Run { exit_code, peak, elapsed, spilled: spilled_bytes(&messages), result, problem })
    })
}

/// Waits for the end of a process; returns its status, or why it had to be ended, and its peak size.
pub(crate) fn poll(child: &mut Child, started: Instant, most: u64) -> io::Result<(Result<ExitStatus, String>, u64)> {
    let mut peak = 0;
    loop {
        // The kernel keeps the maximum itself: only what came in the last interval can be missed.
        peak = peak.max(peak_resident_bytes(child.id()).unwrap_or(0));
        if let Some(status) = child.try_wait()? {
            return match peak {
                0 => Err(io::Error::other("/proc does not tell the peak size of a process")),
                peak => Ok((Ok(status), peak)),
            };
        }
        let reason = if peak > most {
            Some(format!("ended when it had {} MiB", peak / MIB))
        } else if started.elapsed() > LONGEST_RUN {
            Some(format!("ended after {} s", LONGEST_RUN.as_secs()))
        } else {
            None
        };
        if let Some(reason) = reason {
            child.kill()?;
            child.wait()?;
            return Ok((Err(reason), peak));
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// What a line of /proc/meminfo says, in bytes.
pub(crate) fn machine_memory(name: &str) -> io::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    bytes_of(&text, name).ok_or_else(|| io::Error::other(format!("/proc/meminfo does not tell {name}")))
}

/// What the kernel says about the most memory that a process had resident.
fn peak_resident_bytes(process: u32) -> Option<u64> {
    bytes_of(&fs::read_to_string(format!("/proc/{process}/status")).ok()?, "VmHWM:")
}

/// The bytes in a line like `VmHWM:  1234 kB`.
fn bytes_of(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// The error that the tool ends with, on one line.
fn error_message(messages: &str) -> Option<String> {
    let mut lines = messages.lines().skip_while(|line| !line.starts_with("error: "));
    let first = lines.next()?.trim_start_matches("error: ");
    let words = std::iter::once(first).chain(lines).flat_map(str::split_whitespace);
    Some(words.collect::<Vec<_>>().join(" "))
}

/// What the statistics of all statements say was spilled: blocks in the last line of each, operators in lines of their
/// own.
fn spilled_bytes(statistics: &str) -> u64 {
    let sizes = statistics
        .lines()
        .filter(|line| line.starts_with("Dataset: ") || line.starts_with("Operator "))
        .filter_map(|line| line.split("spilled ").nth(1))
        .filter_map(|rest| parse_size(rest.split(',').next().unwrap_or(rest)));
    sizes.sum()
}

/// The number of bytes in a text like `368.0KiB`.
fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = text.trim().split_at(text.trim().find(|c: char| c.is_ascii_alphabetic())?);
    let shift = ["B", "KiB", "MiB", "GiB", "TiB"].into_iter().position(|u| u == unit)? * 10;
    Some((number.parse::<f64>().ok()? * (1u64 << shift) as f64) as u64)
}

/// A result that is too large to keep: how many lines, and what they hash to.
#[derive(Debug, Clone, Default)]
struct Lines {
    count: u64,
    ordered: u64,
    unordered: u64,
    first: Vec<String>,
}

impl Lines {
    fn read(output: impl Read) -> io::Result<Self> {
        let mut lines = Self::default();
        let mut output = BufReader::with_capacity(1 << 16, output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line)? > 0 {
            let mut hasher = DefaultHasher::new();
            line.hash(&mut hasher);
            lines.count += 1;
            lines.unordered = lines.unordered.wrapping_add(hasher.finish());
            lines.ordered.hash(&mut hasher);
            lines.ordered = hasher.finish();
            if lines.first.len() < SHOWN_LINES {
                lines.first.push(String::from_utf8_lossy(&line).trim_end().chars().take(200).collect());
            }
            line.clear();
        }
        Ok(lines)
    }

    /// Puts another result behind this one.
    fn append(&mut self, other: Self) {
        let mut hasher = DefaultHasher::new();
        (self.ordered, other.ordered).hash(&mut hasher);
        self.ordered = hasher.finish();
        self.unordered = self.unordered.wrapping_add(other.unordered);
        self.count += other.count;
        self.first.extend(other.first);
    }

    /// What is different from the lines that are expected.
    fn difference(&self, expected: &Self, comparison: Comparison) -> Option<String> {
        let same = match comparison {
            Comparison::Ordered => self.ordered == expected.ordered,
            Comparison::Unordered => self.unordered == expected.unordered,
        };
        (!same || self.count != expected.count).then(|| {
            let show = |lines: &Self| format!("{} lines that start with {}", lines.count, lines.first.join(" / "));
            format!("another result: {}; expected {}", show(self), show(expected))
        })
    }
}
