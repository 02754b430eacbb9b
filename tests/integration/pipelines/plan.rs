//! Random pipelines as SQL, and what is known of their rows without running them.

/// Numbers by chance that follow from a seed (SplitMix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    fn between(&mut self, min: u64, max: u64) -> u64 {
        min + self.below(max - min + 1)
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(super) fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// A row: its id and key. Its text follows from the id.
pub(super) type Row = (i64, i64);

/// Rows of the table of files, and how many files it has.
pub(super) const TABLE_ROWS: i64 = 6000;
pub(super) const TABLE_FILES: usize = 24;

/// The text of a row, which is as long as 60 bytes.
pub(super) fn text_of(id: i64) -> String {
    format!("row {id}").repeat((id % 7) as usize)
}

/// The same in SQL.
pub(super) const TEXT: &str = "repeat('row ' || id, id % 7)";

/// What is known of the rows of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// They are those of the model.
    All,
    /// They are so many of those of the model.
    Count(usize),
    /// They are some of those of the model.
    Some,
}

/// A pipeline: what to write after FROM, and a model of what comes out.
#[derive(Debug, Clone)]
pub(super) struct Pipeline {
    pub(super) sql: String,
    pub(super) rows: Vec<Row>,
    pub(super) known: Known,
    /// Whether the rows come in the order of the model.
    pub(super) is_ordered: bool,
    /// Whether they come in the same order whatever the threads and the memory, and are the same ones.
    pub(super) is_stable: bool,
    /// Whether the session keeps the order of rows.
    keeps_order: bool,
}

impl Pipeline {
    fn source(random: &mut Random, keeps_order: bool) -> Self {
        let (sql, rows) = if random.one_in(2) {
            ("t".to_owned(), TABLE_ROWS)
        } else {
            let rows = [0, 1, 50, 3000, 5000][random.below(5) as usize];
            let blocks = random.between(1, 20);
            let sql = format!(
                "(SELECT id, id % 100 AS key, {TEXT} AS s FROM range({rows}, override_num_blocks => {blocks}))"
            );
            (sql, rows)
        };
        let rows = (0..rows).map(|id| (id, id % 100)).collect();
        Self { sql, rows, known: Known::All, is_ordered: keeps_order, is_stable: keeps_order, keeps_order }
    }

    /// A pipeline of up to `steps` steps.
    pub(super) fn random(random: &mut Random, steps: u64, keeps_order: bool) -> Self {
        let mut pipeline = Self::source(random, keeps_order);
        for _ in 0..steps {
            pipeline = pipeline.step(random, steps);
        }
        pipeline
    }

    /// The same rows in windows, with something done in each, or not.
    pub(super) fn in_windows(self, random: &mut Random) -> Self {
        let size = match random.below(3) {
            0 => format!("blocks_per_window => {}", random.between(1, 8)),
            1 => format!("bytes_per_window => '{}B'", random.between(1, 60_000)),
            _ => format!("rows_per_window => {}", random.between(50, 3000)),
        };
        let windows = self.call("windows", &size);
        match random.below(4) {
            0 => windows.call("repartition_each_window", &format!("num_blocks => {}", random.between(1, 9))),
            1 => windows.call("random_shuffle_each_window", "seed => 3").moved(),
            2 => windows.call("rewindow", &format!("rows_per_window => {}", random.between(50, 2000))),
            _ => windows,
        }
    }

    fn select(self, list: &str, rest: &str) -> Self {
        Self { sql: format!("(SELECT {list} FROM {} AS p {rest})", self.sql), ..self }
    }

    fn call(self, function: &str, arguments: &str) -> Self {
        let comma = if arguments.is_empty() { "" } else { ", " };
        Self { sql: format!("{function}({}{comma}{arguments})", self.sql), ..self }
    }

    /// The same rows in an order that the model does not know.
    fn moved(self) -> Self {
        Self { is_ordered: false, ..self }
    }

    /// The same rows in an order that nobody knows.
    fn anyhow(self) -> Self {
        Self { is_ordered: false, is_stable: false, ..self }
    }

    fn step(self, random: &mut Random, steps: u64) -> Self {
        match random.below(20) {
            0..=3 => {
                let options = map_options(random);
                self.call("map_batches", &format!("'identity'{options}"))
            }
            4 => {
                let (seed, blocks) = (random.below(100), random.between(1, 12));
                let blocks = if random.one_in(2) { format!(", num_blocks => {blocks}") } else { String::new() };
                self.call("random_shuffle", &format!("seed => {seed}{blocks}")).moved()
            }
            5 | 6 => self.sorted(random),
            7 => {
                let (blocks, shuffle) = (random.between(1, 40), random.one_in(2));
                let moved = self.call("repartition", &format!("{blocks}, shuffle => {shuffle}"));
                if shuffle { moved.moved() } else { moved }
            }
            8 => {
                let size = match random.below(3) {
                    0 => format!("target_num_rows_per_block => {}", random.between(20, 2000)),
                    1 => format!("target_num_rows_per_block => {}, strict => true", random.between(20, 2000)),
                    _ => format!("target_bytes_per_block => {}", random.between(4_000, 100_000)),
                };
                self.call("repartition", &size)
            }
            9 => {
                let (blocks, sort) = (random.between(1, 40), random.one_in(2));
                let moved = |blocks: &str| self.call("repartition", &format!("keys => 'key', sort => {sort}{blocks}"));
                // Without a number of blocks they are as many as fit the memory, and rows of different keys come as
                // they were routed.
                match (random.one_in(3), sort) {
                    (true, _) => moved("").anyhow(),
                    (false, false) => moved(&format!(", num_blocks => {blocks}")).anyhow(),
                    (false, true) => moved(&format!(", num_blocks => {blocks}")).moved(),
                }
            }
            10 => {
                let window = if random.one_in(3) { ", window => 3" } else { "" };
                let seed = random.below(100);
                self.call("randomize_block_order", &format!("seed => {seed}{window}")).moved()
            }
            11 => {
                let (kept, seed) = (random.between(0, 100), random.below(50));
                let sampled = self.select("*", &format!("TABLESAMPLE BERNOULLI ({kept}) REPEATABLE ({seed})"));
                Self { known: if kept == 100 { sampled.known } else { Known::Some }, ..sampled }
            }
            12 => self.filtered(random),
            13 => {
                let mut shifted = self.select("id, key + 1 AS key, s", "");
                shifted.rows.iter_mut().for_each(|row| row.1 += 1);
                shifted
            }
            14 => self.limited(random),
            15 => self.zipped(random),
            16 | 17 => self.brought_together(random, steps),
            18 => self.joined(random, steps),
            _ => self.grouped(random),
        }
    }

    fn sorted(mut self, random: &mut Random) -> Self {
        let (order, descending) = match random.below(3) {
            0 => ("id, key", false),
            1 => ("id DESC, key DESC", true),
            _ => ("key, id", false),
        };
        match order {
            "key, id" => self.rows.sort_by_key(|row| (row.1, row.0)),
            _ => self.rows.sort(),
        }
        if descending {
            self.rows.reverse();
        }
        let known = self.known;
        // Of rows that are not known only so much is: those that there are come in order.
        let is_ordered = known == Known::All && self.keeps_order;
        Self { is_ordered, ..self.select("*", &format!("ORDER BY {order}")) }
    }

    fn filtered(mut self, random: &mut Random) -> Self {
        let (divisor, rest) = (random.between(1, 9) as i64, random.below(3) as i64);
        self.rows.retain(|row| row.0 % divisor != rest);
        let known = if self.known == Known::All { Known::All } else { Known::Some };
        let filtered = self.select("*", &format!("WHERE id % {divisor} <> {rest}"));
        Self { known, ..filtered }
    }

    fn limited(mut self, random: &mut Random) -> Self {
        let limit = [0, 1, 10, 1000, 100_000][random.below(5) as usize];
        let known = match self.known {
            Known::All if limit >= self.rows.len() => Known::All,
            Known::All if self.is_ordered => {
                self.rows.truncate(limit);
                Known::All
            }
            Known::All => Known::Count(limit),
            Known::Count(n) => Known::Count(n.min(limit)),
            Known::Some => Known::Some,
        };
        let limited = self.select("*", &format!("LIMIT {limit}"));
        Self { known, ..limited }
    }

    /// Beside as many other rows, which are left out again.
    fn zipped(self, random: &mut Random) -> Self {
        let rows = match self.known {
            Known::All => self.rows.len(),
            Known::Count(n) => n,
            Known::Some => return self,
        };
        let other = format!("(SELECT id AS other FROM range({rows}, override_num_blocks => {}))", random.between(1, 9));
        let other = match random.below(3) {
            0 => other,
            1 => format!("map_batches({other}, 'identity'{})", map_options(random)),
            _ => format!("(SELECT * FROM {other} AS q ORDER BY other DESC)"),
        };
        let zipped = self.call("zip", &other);
        zipped.select("id, key, s", "WHERE other >= 0")
    }

    /// With another pipeline, one after the other or by turns.
    fn brought_together(self, random: &mut Random, steps: u64) -> Self {
        let steps = random.below(steps.max(1));
        let other = Self::random(random, steps, self.keeps_order);
        let known = match (self.known, other.known) {
            (Known::All, Known::All) => Known::All,
            _ => Known::Some,
        };
        let (is_ordered, is_stable) = (self.is_ordered && other.is_ordered, self.is_stable && other.is_stable);
        let rows = [self.rows, other.rows].concat();
        let (sql, is_ordered) = if random.one_in(2) {
            (format!("(SELECT * FROM {} AS a UNION ALL SELECT * FROM {} AS b)", self.sql, other.sql), is_ordered)
        } else {
            (format!("mix({}, {}, weights => [{}, 1])", self.sql, other.sql, random.between(1, 3)), false)
        };
        Self { sql, rows, known, is_ordered, is_stable, keeps_order: self.keeps_order }
    }

    /// Those rows whose id another pipeline has.
    fn joined(mut self, random: &mut Random, steps: u64) -> Self {
        let steps = random.below(steps.max(1));
        let other = Self::random(random, steps, self.keeps_order);
        let known = match (self.known, other.known) {
            (Known::All, Known::All) => Known::All,
            _ => Known::Some,
        };
        let ids: std::collections::HashSet<i64> = other.rows.iter().map(|row| row.0).collect();
        self.rows.retain(|row| ids.contains(&row.0));
        let joined = self.select("*", &format!("WHERE id IN (SELECT id FROM {} AS q)", other.sql));
        Self { known, ..joined }.anyhow()
    }

    fn grouped(mut self, random: &mut Random) -> Self {
        if self.known != Known::All {
            return self;
        }
        let mut rows = std::collections::BTreeMap::<Row, ()>::new();
        if random.one_in(2) {
            rows.extend(self.rows.iter().map(|row| (*row, ())));
            self.rows = rows.into_keys().collect();
            self.select("DISTINCT id, key, s", "").anyhow()
        } else {
            let mut least = std::collections::BTreeMap::<i64, i64>::new();
            for (id, key) in &self.rows {
                least.entry(*key).and_modify(|known| *known = (*known).min(*id)).or_insert(*id);
            }
            self.rows = least.into_iter().map(|(key, id)| (id, key)).collect();
            let grouped = self.select("min(id) AS id, key", "GROUP BY key");
            grouped.select(&format!("id, key, {TEXT} AS s"), "").anyhow()
        }
    }
}

/// How the tasks of a map run.
fn map_options(random: &mut Random) -> String {
    let mut options = String::new();
    if random.one_in(3) {
        options += &format!(", batch_size => {}", random.between(1, 3000));
    }
    options += match random.below(9) {
        0 => ", concurrency => 1",
        1 => ", concurrency => 2",
        2 => ", concurrency => 3",
        3 => ", num_cpus => 0.5",
        4 => ", num_cpus => 1",
        5 => ", num_cpus => 2, concurrency => 2",
        6 => ", compute => 'actors(1..2)'",
        7 => ", compute => 'actors(1)', num_cpus => 1",
        _ => "",
    };
    options
}

/// Settings of a run, as statements. Those of the first kind may change orders.
pub(super) fn settings(random: &mut Random) -> (Vec<String>, Vec<String>) {
    let mut plan = Vec::new();
    for switch in ["fuse_stages", "fuse_read_stages", "fuse_shuffle_stages", "reorder_stages"] {
        if random.one_in(3) {
            plan.push(format!("SET blockyard.optimize_{switch} = false"));
        }
    }
    if random.one_in(4) {
        plan.push("SET blockyard.prefer_spilling_joins = true".to_owned());
    }
    let mut run = Vec::new();
    match random.below(4) {
        0 | 1 => run.push("SET blockyard.resource_limits_cpu = 1".to_owned()),
        2 => run.push("SET blockyard.resource_limits_cpu = 2".to_owned()),
        _ => {}
    }
    if random.one_in(3) {
        run.push("SET blockyard.resource_limits_object_store_memory = '1MiB'".to_owned());
    }
    if random.one_in(3) {
        let policies = random.of(&["", "adaptive_concurrency_cap, resource_budget", "downstream_capacity"]);
        run.push(format!("SET blockyard.backpressure_policies = '{policies}'"));
    }
    if random.one_in(3) {
        run.push("SET blockyard.scheduler_ranking = 'memory'".to_owned());
    }
    if random.one_in(3) {
        let size = random.of(&["20KiB", "100KiB", "1MiB"]);
        plan.push(format!("SET blockyard.target_max_block_size = '{size}'"));
    }
    (plan, run)
}
