"""Queries that are killed and go on at their tokens give the rows of queries that nobody kills.

    python -m venv target/oracle && target/oracle/bin/pip install -r tests/oracle/requirements.txt
    target/oracle/bin/python tests/oracle/resume.py [--tool target/debug/blockyard] [--plans 200] [--cuts 5] [--seed 1]

Parquet and CSV files of random sizes are written, some without rows, with nulls, NaN, -0.0 and texts from empty to
long. Over them random queries are drawn: filters, projections, samples, limits, sorts, shuffles of all kinds,
repartitions, unions, mixes, zips and pipelines. Each is run once, and its rows are kept as digests. Then it is killed
behind random batches, and goes on in processes with other threads, another memory limit, other logical CPUs and batches
of another size; some of these are killed as well. The rows before the position of the token and those of the process
that goes on must be those of the whole run, in its order, and the token must be short. A third of them is also served
to four consumers, killed, goes on for three, is killed again, and ends with eight: their steps put together are the
rows of the whole run too.

A token is written behind a batch that the reader of the pipe can have. So there is one behind batch k once batch k + 1
was read, and the killed process may have been further: what counts are the rows that the token counts.
"""

import argparse
import collections
import concurrent.futures
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

import consumers

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# What one process may take before it counts as hanging.
SECONDS = 120
# A killed process is no further ahead of its reader than this.
PIPE_BYTES = 4096
# A token has at most so many bytes, and so many for each source beyond the first.
TOKEN_BYTES, SOURCE_BYTES = 512, 32
# Of a plan that has no token, or too few batches, another one is drawn, so often.
ATTEMPTS = 8
# More rows than these are not drawn.
MAX_ROWS = 30_000

KINDS = {"id": "int", "k": "int", "x": "float", "s": "text", "b": "bool"}
CSV_TYPES = "id bigint, k bigint, x double, s varchar, b boolean"

# What a query is made of, to be counted: the figures at the end say that nothing is left out.
PARTS = """read_parquet read_csv range local_shuffle random_shuffle randomize_block_order windows repeat rewindow
    random_shuffle_each_window sort_each_window randomize_block_order_each_window repartition_each_window foreach_window
    repartition mix zip map_batches UNION LIMIT ORDER TABLESAMPLE WHERE""".split()

# Rows, as SQL that can stand behind FROM: with the kinds of their columns, and about how many there are.
Rows = collections.namedtuple("Rows", "sql kinds count")


def make_table(random, first, rows, text_bytes):
    """Random rows with ids from `first` on."""
    floats = [0.0, -0.0, math.nan, math.inf, -math.inf, 1e300]
    texts = ["", "ä", "a, 'b'", "NULL", "東京"]

    def value(draw, nulls=0.1):
        return [None if random.random() < nulls else draw() for _ in range(rows)]

    def text():
        long = random.choice("abcxyz") * random.randrange(1, text_bytes)
        return random.choice(texts) if random.random() < 0.2 else long

    def number():
        return random.choice(floats) if random.random() < 0.1 else random.gauss(0, 100)

    return pa.table({
        "id": pa.array(range(first, first + rows), pa.int64()),
        "k": pa.array(value(lambda: int(random.random() ** 2 * 50) - 5), pa.int64()),
        "x": pa.array(value(number), pa.float64()),
        "s": pa.array(value(text), pa.string()),
        "b": pa.array(value(lambda: random.random() < 0.5, 0.3), pa.bool_()),
    })


def make_sources(random, directory):
    """Writes the files of all sources."""
    sources = []
    # Name, files, the most rows of a file, the most bytes of a text.
    for name, files, rows, text_bytes in [
        ("one", 1, 6000, 20), ("few", 3, 2500, 40), ("many", 14, 600, 30), ("wide", 2, 1200, 3000),
        ("long", 2, 9000, 12), ("comma", 3, 2500, 30), ("line", 8, 500, 60), ("bulk", 1, 5000, 200),
    ]:
        path, is_csv, total = f"{directory}/{name}", name in ("comma", "line", "bulk"), 0
        os.makedirs(path)
        for number in range(files):
            count = 0 if files > 4 and random.random() < 0.15 else random.randrange(rows // 4, rows)
            table = make_table(random, total, count, text_bytes)
            total += count
            if is_csv:
                pa.csv.write_csv(table, f"{path}/{number:02}.csv")
            else:
                group = random.choice([37, 200, 1000, 100_000])
                pa.parquet.write_table(table, f"{path}/{number:02}.parquet", row_group_size=group)
        sources.append((path, is_csv, files, total))
    return sources


class Drawing:
    """Draws a query."""

    def __init__(self, random, sources):
        self.random, self.sources = random, sources
        self.names = 0

    def name(self):
        self.names += 1
        return f"c{self.names}"

    def seed(self):
        return f"seed => {self.random.randrange(1000)}"

    def read(self):
        random = self.random
        if random.random() < 0.1:
            count = random.randrange(500, 6000)
            blocks = f", override_num_blocks => {random.randrange(1, 9)}" if random.random() < 0.7 else ""
            columns = "id, id % 11 AS k, id / 8.0::DOUBLE AS x, 'r' || id AS s, id % 3 = 0 AS b"
            return Rows(f"(SELECT {columns} FROM range({count}{blocks}))", dict(KINDS), count)
        path, is_csv, files, count = random.choice(self.sources)
        ending = "csv" if is_csv else "parquet"
        chosen = random.sample(range(files), random.randrange(2, files + 1)) if files > 2 else range(files)
        paths = "[" + ", ".join(f"'{path}/{number:02}.{ending}'" for number in chosen) + "]"
        paths = random.choice([f"'{path}/'", f"'{path}/*.{ending}'", paths])
        options = f", types => '{CSV_TYPES}'" if is_csv else ""
        if random.random() < 0.4:
            options += f", override_num_blocks => {random.randrange(1, 20)}"
        return Rows(f"read_{ending}({paths}{options})", dict(KINDS), count)

    def column(self, rows, *kinds):
        """A column of one of the kinds, if there is one."""
        names = [name for name, kind in rows.kinds.items() if not kinds or kind in kinds]
        return self.random.choice(names) if names else None

    def condition(self, rows):
        random = self.random
        name = self.column(rows)
        part = random.randrange(2, 9)
        return random.choice([f"{name} IS NOT NULL", f"{name} IS DISTINCT FROM NULL"] + {
            "int": [f"{name} % {part} <> 0", f"{name} % {part} = 1", f"{name} > {random.randrange(999)}"],
            "float": [f"{name} > {random.gauss(0, 50):.2f}", f"abs({name}) < 100"],
            "text": [f"length({name}) % {part} > 0", f"{name} LIKE '%a%'", f"{name} < 'c'"],
            "bool": [name, f"NOT {name}"],
        }[rows.kinds[name]])

    def filtered(self, rows):
        return Rows(f"(SELECT * FROM {rows.sql} WHERE {self.condition(rows)})", rows.kinds, rows.count // 2 + 1)

    def projected(self, rows):
        random = self.random
        names = random.sample(list(rows.kinds), random.randrange(1, len(rows.kinds) + 1))
        kinds = {name: rows.kinds[name] for name in names}
        columns = list(names)
        if random.random() < 0.6:
            new, of = self.name(), self.column(rows)
            expression, kind = {
                "int": (f"{of} * 3 - 1", "int"), "float": (f"{of} / 2", "float"), "text": (f"upper({of})", "text"),
                "bool": (f"CASE WHEN {of} THEN 'yes' END", "text"),
            }[rows.kinds[of]]
            columns.append(f"{expression} AS {new}")
            kinds[new] = kind
        return Rows(f"(SELECT {', '.join(columns)} FROM {rows.sql})", kinds, rows.count)

    def sampled(self, rows):
        percent = self.random.randrange(20, 90)
        sample = f"TABLESAMPLE BERNOULLI ({percent}) REPEATABLE ({self.random.randrange(99)})"
        return Rows(f"(SELECT * FROM {rows.sql} AS t {sample})", rows.kinds, rows.count * percent // 100 + 1)

    def limited(self, rows):
        count = self.random.randrange(rows.count // 2 + 1, rows.count * 2 + 10)
        offset = f" OFFSET {self.random.randrange(rows.count // 4 + 1)}" if self.random.random() < 0.4 else ""
        return Rows(f"(SELECT * FROM {rows.sql} LIMIT {count}{offset})", rows.kinds, min(count, rows.count))

    def mapped(self, rows):
        name = self.random.choice(["identity", "identity", "drop_nulls"])
        size = f", batch_size => {self.random.choice([7, 300, 2000])}" if self.random.random() < 0.5 else ""
        return Rows(f"map_batches({rows.sql}, '{name}'{size})", rows.kinds, rows.count)

    def locally_shuffled(self, rows):
        buffer = self.random.choice([1, 10, 100, 1000, 10_000])
        return Rows(f"local_shuffle({rows.sql}, {buffer}, {self.seed()})", rows.kinds, rows.count)

    def shuffled(self, rows):
        blocks = f", num_blocks => {self.random.randrange(1, 12)}" if self.random.random() < 0.3 else ""
        return Rows(f"random_shuffle({rows.sql}, {self.seed()}{blocks})", rows.kinds, rows.count)

    def in_other_block_order(self, rows):
        window = f", window => {self.random.randrange(1, 9)}" if self.random.random() < 0.4 else ""
        return Rows(f"randomize_block_order({rows.sql}, {self.seed()}{window})", rows.kinds, rows.count)

    def sorted(self, rows):
        return Rows(f"(SELECT * FROM {rows.sql} ORDER BY {self.order(rows)})", rows.kinds, rows.count)

    def order(self, rows):
        keys = self.random.sample(list(rows.kinds), self.random.randrange(1, min(3, len(rows.kinds)) + 1))
        return ", ".join(key + self.random.choice(["", " DESC", " NULLS FIRST"]) for key in keys)

    def into(self, rows):
        """What a repartition makes."""
        random, n = self.random, self.random.randrange(1, 12)
        # Floats are no keys here: whether -0.0 and 0.0 are the same is another question.
        key, number = self.column(rows, "int", "text", "bool"), self.column(rows, "int")
        return random.choice(
            [f"num_blocks => {n}", f"num_blocks => {n}, shuffle => true", f"target_num_rows_per_block => {n * 50}"]
            + [f"target_num_rows_per_block => {n * 90}, strict => true", f"target_bytes_per_block => '{n * 2}KiB'"]
            + [f"num_blocks => {n}, keys => '{key}'", f"num_blocks => {n}, keys => '{key}', sort => true"] * bool(key)
            + [f"keys => '{number}', boundaries => [5, 300, 2000]"] * bool(number)
        )

    def repartitioned(self, rows):
        return Rows(f"repartition({rows.sql}, {self.into(rows)})", rows.kinds, rows.count)

    def windowed(self, rows):
        """A pipeline of some steps."""
        random = self.random
        sizes = [f"rows_per_window => {random.randrange(50, 4000)}", f"blocks_per_window => {random.randrange(1, 5)}"]
        sizes.append(f"bytes_per_window => '{random.randrange(4, 200)}KiB'")
        epochs, count, kinds = "", rows.count, dict(rows.kinds)
        if random.random() < 0.3 and "_epoch" not in kinds:
            epochs = ", include_epoch => true"
            kinds |= {"_epoch": "int", "_window": "int"}
        sql = f"windows({rows.sql}, {random.choice(sizes)}{epochs})"
        if random.random() < 0.2:
            sql = f"repeat({rows.sql}, times => 2)"
            count, kinds = count * 2, dict(rows.kinds)
        for _ in range(random.randrange(1, 4)):
            here = Rows(sql, kinds, count)
            sql = random.choice([
                lambda: f"random_shuffle_each_window({sql}, {self.seed()})",
                lambda: f"randomize_block_order_each_window({sql}, {self.seed()})",
                lambda: f"sort_each_window({sql}, '{self.column(here)}')",
                lambda: f"repartition_each_window({sql}, {self.into(here)})",
                lambda: f"foreach_window({sql}, 'SELECT * FROM this_window WHERE id % 5 <> 2')"
                if "id" in kinds else f"rewindow({sql}, {random.choice(sizes)})",
                lambda: f"foreach_window({sql}, 'SELECT * FROM local_shuffle((SELECT * FROM this_window), 50, {self.seed()})')",
                lambda: f"rewindow({sql}, {random.choice(sizes)})",
                lambda: f"(SELECT * FROM {sql} WHERE {self.condition(here)})",
            ])()
        if count * 2 < MAX_ROWS and random.random() < 0.4:
            sql, count = f"repeat({sql}, times => 2)", count * 2
        return Rows(sql, kinds, count)

    def together(self, rows):
        """These rows and others, one behind the other or by turns."""
        random = self.random
        other = self.steps(self.read(), random.randrange(3))
        names = [name for name, kind in rows.kinds.items() if other.kinds.get(name) == kind]
        if not names or rows.count + other.count > MAX_ROWS:
            return rows
        parts = [f"SELECT {', '.join(names)} FROM {part.sql}" for part in (rows, other)]
        if random.random() < 0.5:
            sql = f"({' UNION ALL '.join(parts)})"
        else:
            weights = random.choice(["", ", weights => [3, 1]", ", weights => [0.2, 1.5]"])
            stop = random.choice(["", ", stopping_condition => 'shortest'"])
            sql = f"mix(({parts[0]}), ({parts[1]}){weights}{stop})"
        return Rows(sql, {name: rows.kinds[name] for name in names}, rows.count + other.count)

    def zipped(self, rows):
        """The rows beside the same rows in another order. Once only: the text doubles."""
        # Windows and blocks by bytes depend on the columns that are read, which are others on both sides, and so do the
        # rows that a sample of them has.
        if "zip(" in rows.sql or ("bytes_per_" in rows.sql and "TABLESAMPLE" in rows.sql):
            return rows
        keeping = [self.locally_shuffled, self.shuffled, self.in_other_block_order, self.sorted, self.repartitioned]
        left, right = (self.random.choice([*keeping, lambda same: same])(rows) for _ in range(2))
        name, new = self.column(right), self.name()
        sql = f"zip({left.sql}, (SELECT {name} AS {new} FROM {right.sql}))"
        return Rows(sql, left.kinds | {new: right.kinds[name]}, rows.count)

    def steps(self, rows, number):
        # What can begin in its middle is drawn more often: where all is read again there is less to go wrong.
        seeking = [
            self.filtered, self.projected, self.sampled, self.limited, self.mapped, self.locally_shuffled,
            self.in_other_block_order, self.windowed, self.together, self.zipped,
        ]
        kinds = 2 * seeking + [self.shuffled, self.sorted, self.repartitioned]
        for _ in range(number):
            rows = self.random.choice(kinds)(rows)
        return rows

    def query(self):
        rows = self.steps(self.read(), self.random.randrange(1, 6))
        return f"SELECT * FROM {rows.sql}", rows.count


def digests(batch):
    """A digest of each row. That of a text, which tells -0.0 from 0.0 and takes NaN for NaN."""
    return [hash(text) for text in map(repr, zip(*(column.to_pylist() for column in batch.columns)))]


class Run:
    """A process of the tool, and the rows that were read of it."""

    def __init__(self, command, pipe_bytes=-1):
        self.rows, self.batches, self.schema, self.stream = [], 0, None, None
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.errors, pipesize=pipe_bytes
        )
        self.timer = threading.Timer(SECONDS, self.process.kill)
        self.timer.start()

    def read(self, batches):
        """Reads at most so many batches, and no part of one. Whether there were as many."""
        for _ in range(batches):
            try:
                if self.stream is None:
                    self.stream = pa.ipc.open_stream(self.process.stdout)
                    self.schema = self.stream.schema
                batch = self.stream.read_next_batch()
            except (StopIteration, pa.ArrowInvalid, OSError):
                return False
            self.rows += digests(batch)
            self.batches += 1
        return True

    def end(self):
        """Reads what is left. What went wrong, or nothing."""
        while self.read(1):
            pass
        self.process.stdout.close()
        code = self.process.wait()
        self.timer.cancel()
        self.errors.seek(0)
        said = self.errors.read().decode(errors="replace").strip()
        self.errors.close()
        if code == -signal.SIGKILL:
            return f"it took more than {SECONDS} s"
        return None if code == 0 else f"exit code {code}: {said[-400:] or 'it said nothing'}"

    def kill(self):
        """Kills it, and reads what it had written. Whether it was the kill that ended it."""
        self.process.kill()
        self.end()
        return self.process.returncode < 0


class Refused(Exception):
    """The plan has no token, or too few batches."""


class Wrong(Exception):
    """The rows, or the tool, are not as they should be."""


class Case:
    """A query with its settings, which is run and killed."""

    def __init__(self, arguments, sources, scratch, number, attempt):
        self.random = random.Random(f"{arguments.seed} {number} {attempt}")
        self.tool, self.cuts = arguments.tool, arguments.cuts
        self.sql, count = Drawing(self.random, sources).query()
        self.token = f"{scratch}/{number}.{attempt}.token"
        self.batch_size = max(1, count // self.random.randrange(6, 60))
        self.settings = []
        for key, values in [
            ("target_min_block_size", ["", "1KiB", "16KiB"]),
            ("target_max_block_size", ["", "", "8KiB", "256KiB"]),
            ("optimize_fuse_stages", ["", "", "false"]),
        ]:
            if value := self.random.choice(values):
                self.settings += ["--set", f"blockyard.{key}={value}"]
        self.made, self.served, self.longest, self.replays = 0, 0, 0, False

    def start(self, options, token=None, pipe_bytes=-1):
        command = [self.tool, "sql", self.sql, "--format", "arrow", "--quiet", *self.settings, *options]
        return Run(command + (["--save-token", token] if token else []), pipe_bytes)

    def other_options(self, rest=True):
        """Other threads and memory; and other CPUs, for those who read the rest of the rows."""
        random = self.random
        options = ["--threads", str(random.choice([1, 2, 8])), "--memory", random.choice(["64MiB", "1GiB"])]
        return options + ["--set", f"blockyard.num_cpus={random.choice([1, 2, 5, 16])}"] * rest

    def other_batches(self):
        size = self.random.choice([self.batch_size, self.batch_size, self.batch_size * 2 + 1])
        return [*self.other_options(), "--batch-size", str(size)]

    def read_token(self, path):
        """How many rows the token counts, and what it has to say."""
        with open(path) as file:
            text = file.read()
        token = json.loads(text)
        sources = max(1, self.sql.count("read_") + self.sql.count("range("))
        size = len(text.encode())
        self.longest = max(self.longest, size)
        if size > TOKEN_BYTES + SOURCE_BYTES * (sources - 1):
            raise Wrong(f"a token of {sources} sources has {size} bytes: {text}")
        return token["rows"], token

    def compare(self, run, first, options):
        """Fails unless the rows of a run are those of the whole one from `first` on, as far as they go."""
        expected = self.whole.rows[first:first + len(run.rows)]
        if run.schema is not None and run.schema != self.whole.schema:
            raise Wrong(f"columns differ: {run.schema} in place of {self.whole.schema}")
        if run.rows != expected:
            differ = (i for i, (one, other) in enumerate(zip(run.rows, expected)) if one != other)
            place = f"row {first + next(differ, len(expected))} differs"
            raise Wrong(f"{place}, of {first} and then {len(run.rows)} rows, with {' '.join(options)}")

    def run_whole(self):
        self.whole_options = ["--threads", "2", "--memory", "1GiB", "--batch-size", str(self.batch_size)]
        whole = self.whole = self.start(self.whole_options, self.token)
        failed = whole.end()
        if failed and ("there is no resume token of this dataset" in failed):
            raise Refused("no token")
        if failed:
            raise Wrong(failed)
        if whole.batches < 4:
            raise Refused("few rows")
        rows, token = self.read_token(self.token)
        if rows != len(whole.rows):
            raise Wrong(f"the token behind {len(whole.rows)} rows says that there were {rows}")
        self.replays = not ({"n", "i"} & token["place"].keys())

    def cut(self, number):
        """Kills a run behind a batch, and goes on until one comes to its end."""
        random, total = self.random, len(self.whole.rows)
        options, resumed, first = self.whole_options, [], 0
        # Where it is killed: behind so many batches. Those that go on are killed seldom.
        behind = random.randrange(1, self.whole.batches - 2)
        kills = random.choice([1, 1, 2])
        for kill in range(kills):
            token = f"{self.token}.{number}.{kill}"
            run = self.start([*options, *resumed], token, PIPE_BYTES)
            there = run.read(behind + 1)
            was_killed = run.kill() if there else False
            failed = None if there else run.end()
            if failed:
                raise Wrong(f"{failed}, with {' '.join([*options, *resumed])}")
            self.compare(run, first, [*options, *resumed])
            if not was_killed:
                break
            rows, _ = self.read_token(token)
            if rows > first + len(run.rows):
                raise Wrong(f"a token counts {rows} rows, of which {first + len(run.rows)} were written")
            if rows <= first:
                raise Wrong(f"a token counts {rows} rows, behind one of {first} and {behind} batches")
            if kill == 0 and rows == total:
                # It was at its end before it was killed.
                break
            first, resumed, options = rows, ["--resume", token], self.other_batches()
            behind = random.randrange(1, 4)
        if not resumed:
            return
        last = self.start([*options, *resumed], f"{self.token}.{number}.last")
        if failed := last.end():
            raise Wrong(f"{failed}, with {' '.join([*options, *resumed])}")
        self.compare(last, first, [*options, *resumed])
        if first + len(last.rows) != total:
            raise Wrong(f"{first} and then {len(last.rows)} rows, of {total}, with {' '.join([*options, *resumed])}")
        self.made += 1

    def serve(self):
        """Serves the query to four consumers, then three, then eight, each time behind the token of those before."""
        random, rows, token = self.random, 0, None
        step = random.randrange(8, max(9, len(self.whole.rows) // 20))
        for number, last in [(4, False), (3, False), (8, True)]:
            # The reads of those who begin are cut as they were in the whole run; later the token says how.
            options = self.other_options(rest=token is not None) + self.settings
            served = None
            try:
                served = consumers.Served(self.tool, self.sql, number, step, options, token)
                rows, token = self.take_steps(served, rows, sys.maxsize if last else random.randrange(1, 6))
            except (RuntimeError, OSError, ValueError) as error:
                raise Wrong(f"{number} consumers behind {rows} rows: {error}, with {' '.join(options)}") from error
            finally:
                if served is not None:
                    served.kill()
            if rows == len(self.whole.rows):
                break
        if rows != len(self.whole.rows):
            raise Wrong(f"consumers got {rows} rows of {len(self.whole.rows)}")
        self.served += 1

    def take_steps(self, served, rows, steps):
        """Takes so many steps. How many rows there were with those before, and the path of the token behind them."""
        total = len(self.whole.rows)
        while rows < total and steps > 0 and served.begin_epoch():
            while steps > 0 and (batches := served.step()):
                steps -= 1
                read = [digest for batch in batches for digest in digests(batch)]
                if read != self.whole.rows[rows:rows + len(read)]:
                    raise Wrong(f"{len(batches)} consumers got other rows than those from {rows} on")
                rows += len(read)
        path = f"{self.token}.served.{rows}"
        # The acknowledgements are on their way.
        for _ in range(1000):
            token = served.token()
            if json.loads(token)["rows"] == rows or rows == total:
                break
            time.sleep(0.005)
        else:
            raise Wrong(f"the token of consumers that have acknowledged {rows} rows is {token}")
        with open(path, "w") as file:
            file.write(token)
        return rows, path

    def check_end(self):
        """Behind the last row there are none."""
        options = [*self.other_batches(), "--resume", self.token]
        run = self.start(options)
        if failed := run.end():
            raise Wrong(f"{failed}, at the end, with {' '.join(options)}")
        self.compare(run, len(self.whole.rows), options)


Outcome = collections.namedtuple("Outcome", "sql made served replays longest differences refused")


def run_plan(arguments, sources, scratch, number):
    """Draws a plan, runs it whole, and kills it as often as is asked for."""
    refused, differences = 0, []
    for attempt in range(ATTEMPTS):
        case = Case(arguments, sources, scratch, number, attempt)
        try:
            case.run_whole()
            for cut in range(arguments.cuts):
                case.cut(cut)
            if number % 4 == 0:
                case.check_end()
            if number % 3 == 0:
                case.serve()
        except Refused:
            refused += 1
            continue
        except Wrong as wrong:
            settings = " ".join([*case.settings, *case.whole_options])
            differences.append(f"--seed {arguments.seed} --only {number}: {wrong}\n    {settings}\n    {case.sql}\n")
        return Outcome(case.sql, case.made, case.served, case.replays, case.longest, differences, refused)
    return Outcome("", 0, 0, False, 0, [], refused)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", default=os.path.join(ROOT, "target", "debug", "blockyard"))
    parser.add_argument("--plans", type=int, default=200)
    parser.add_argument("--cuts", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="*", help="the numbers of the plans to run")
    parser.add_argument("--directory", help="where the files are made, and stay")
    arguments = parser.parse_args()
    numbers = range(arguments.plans) if arguments.only is None else arguments.only
    with tempfile.TemporaryDirectory(prefix="blockyard-resume-") as scratch:
        directory = os.path.abspath(arguments.directory or f"{scratch}/in")
        sources = make_sources(random.Random(arguments.seed), directory)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            outcomes = []
            for outcome in pool.map(lambda number: run_plan(arguments, sources, scratch, number), numbers):
                for line in outcome.differences:
                    print(line, file=sys.stderr, flush=True)
                outcomes.append(outcome)
    ran = [outcome for outcome in outcomes if outcome.sql]
    made, planned = sum(outcome.made for outcome in ran), arguments.cuts * len(numbers)
    replays, wrong = sum(outcome.replays for outcome in ran), sum(bool(outcome.differences) for outcome in ran)
    refused = sum(outcome.refused for outcome in outcomes)
    queries = [outcome.sql for outcome in ran]
    print(", ".join(f"{part} {sum(f'{part}(' in sql or f' {part} ' in sql for sql in queries)}" for part in PARTS))
    print(
        f"{len(ran)} plans, {refused} drawn that have no token or few rows; {made} of {planned} cuts made; "
        f"{sum(outcome.served for outcome in ran)} served to other numbers of consumers; "
        f"{len(ran) - replays} plans have a place, {replays} begin anew; the longest token has "
        f"{max((outcome.longest for outcome in ran), default=0)} bytes; {wrong} differ"
    )
    if wrong or made * 2 < planned:
        sys.exit(1)


if __name__ == "__main__":
    main()
