"""Queries whose executors are killed, stopped or asked to end give the rows of one process, or say why not.

    python -m venv target/oracle && target/oracle/bin/pip install -r tests/oracle/requirements.txt
    target/oracle/bin/python tests/oracle/executors.py [--tool target/debug/blockyard] [--rounds 60] [--seed 1]

Tables of random sizes are written as Parquet: keys that are null, that many rows have, or few; texts, doubles, dates.
Over them queries are drawn that join, group and filter, so that executors exchange rows. Each runs in one process, and
with two or three executors of different memory, of which one or two are killed (SIGKILL), stopped (SIGSTOP, and sometimes
let go again) or asked to end (SIGTERM) at a random moment of the query; a killed one may be started anew at its address.
As long as one executor lives that has planned the query, its rows must be those of the one process: in their order where
they are shuffled or sorted, and as a bag otherwise.

A third of them is written to files, which are read for this; hidden files may not be left.

At the end no executor may have a query left, nor any file in its spill directory.
"""

import argparse
import collections
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pyarrow as pa
import pyarrow.parquet

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# What a query may take before it counts as hanging: one that is stopped counts as lost after 15 s.
SECONDS = 90
# A query is disturbed within so many times what one process has taken for it.
LATEST = 1.2


class Executor:
    """A process, which may be gone."""

    def __init__(self, tool, directory, number, memory):
        self.tool, self.memory = tool, memory
        self.address = f"unix:{directory}/{number}.sock"
        self.spill = os.path.join(directory, f"spill{number}")
        self.stopped = False
        self.start()

    def start(self):
        os.makedirs(self.spill, exist_ok=True)
        command = [self.tool, "cluster", "executor", "--listen", self.address, "--threads", "1", "--memory", self.memory,
                   "--spill-dir", self.spill]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        assert line.startswith("listening on"), line

    def disturb(self, how):
        """Does it, and returns whether the process may not be there any more."""
        self.process.send_signal(how)
        if how == signal.SIGSTOP:
            self.stopped = True
        else:
            self.process.wait()

    def let_go(self):
        if self.stopped:
            self.process.send_signal(signal.SIGCONT)
            self.stopped = False

    def lives(self):
        return self.process.poll() is None

    def end(self):
        self.let_go()
        if self.lives():
            self.process.kill()
        self.process.wait()


def table(draw, rows):
    """Rows with keys of several kinds."""
    few, many = draw.choice([3, 50]), draw.choice([500, 20_000])
    hot = draw.random() < 0.3

    def key(row):
        if draw.random() < 0.05:
            return None
        return 7 if hot and draw.random() < 0.3 else draw.randrange(many)

    texts = ["", "ä", "none", "x" * 40] + [f"text {n}" for n in range(few)]
    return pa.table({
        "id": pa.array(range(rows), pa.int64()),
        "k": pa.array([key(row) for row in range(rows)], pa.int64()),
        "s": pa.array([draw.choice(texts) if draw.random() > 0.1 else None for _ in range(rows)], pa.string()),
        "x": pa.array([draw.choice([0.0, -0.0, 0.5, -3.25, 1e9]) for _ in range(rows)], pa.float64()),
        "d": pa.array([draw.randrange(20_000) for _ in range(rows)], pa.date32()),
    })


def query(draw, tables):
    """A query whose rows do not depend on the order in which others come."""
    a, b, c = (draw.choice(tables) for _ in range(3))
    kind = draw.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
    on = draw.choice(["a.k = b.k AND a.id < b.id + 9", "a.id = b.id", "a.k = b.id", "a.s = b.s AND a.k = b.k", "a.d = b.d AND a.x = b.x"])
    joined = f"(SELECT a.id, a.k, b.id AS i, b.s, a.x, b.d FROM '{a}' a {kind} '{b}' b ON {on})"
    where = draw.choice(["", "WHERE id % 3 < 2", "WHERE s IS NOT NULL", "WHERE d > DATE '1990-01-01'"])
    kept = draw.choice(["EXISTS", "NOT EXISTS"])
    return draw.choice([
        f"SELECT * FROM {joined} {where}",
        f"SELECT k, count(*), min(s), max(d), sum(i) FROM {joined} {where} GROUP BY k",
        f"SELECT s, x, count(DISTINCT k), sum(id) FROM '{a}' {where} GROUP BY s, x",
        f"SELECT k, s, count(*) FROM '{a}' {where} GROUP BY ROLLUP (k, s)",
        f"SELECT a.id, a.s FROM '{a}' a WHERE {kept} (SELECT 1 FROM '{b}' b WHERE b.k = a.k AND b.d > a.d)",
        f"SELECT j.k, c.s, count(*), max(j.i) FROM {joined} j JOIN '{c}' c ON j.i = c.id GROUP BY j.k, c.s",
        f"SELECT g.n, count(*) FROM (SELECT k, count(*) AS n FROM '{a}' GROUP BY k) g JOIN '{b}' b ON g.k = b.k GROUP BY g.n",
        f"SELECT * FROM repartition('{a}', 5, keys => ['k', 's']) {where}",
        f"SELECT id, k, s FROM map_batches('{a}', 'identity', batch_size => 100) {where}",
        f"SELECT k, count(*) AS n FROM {joined} GROUP BY k ORDER BY n DESC, k LIMIT 20",
        f"SELECT id, lag(s) OVER (PARTITION BY k ORDER BY id) AS l, count(*) OVER (PARTITION BY k) AS n FROM '{a}' {where}",
        f"SELECT * FROM (SELECT id, s, row_number() OVER (PARTITION BY s ORDER BY d, id) AS r FROM '{a}' {where}) WHERE r < 4",
        f"SELECT r, count(*), sum(n) OVER (PARTITION BY count(*)) FROM (SELECT s, n, rank() OVER (PARTITION BY s ORDER BY n) AS r "
        f"FROM (SELECT s, k, count(*) AS n FROM '{a}' GROUP BY s, k)) GROUP BY r, n",
        f"SELECT w.n, b.s, count(*) FROM (SELECT id, ntile(3) OVER (PARTITION BY k ORDER BY id) AS n FROM '{a}' {where}) w "
        f"JOIN '{b}' b ON w.id = b.k GROUP BY w.n, b.s",
    ])


def query_in_order(draw, tables):
    """A query whose rows come in one order, wherever they are made."""
    a, seed, n = draw.choice(tables), draw.randrange(100), draw.randrange(1, 9)
    where = draw.choice(["", "WHERE id % 3 < 2", "WHERE s IS NOT NULL", "WHERE d > DATE '1990-01-01'"])
    keys = draw.choice(["s", "k DESC, x", "x, s DESC, d", "d NULLS FIRST", "x DESC NULLS FIRST, id", "id + k"])
    return draw.choice([
        f"SELECT * FROM random_shuffle('{a}', seed => {seed}) {where}",
        f"SELECT * FROM random_shuffle((SELECT * FROM '{a}' {where}), seed => {seed}, num_blocks => {n})",
        # Rows with equal keys stay in the order of the files.
        f"SELECT * FROM '{a}' {where} ORDER BY {keys}",
        f"SELECT id, s FROM random_shuffle('{a}', seed => {seed}) {where} ORDER BY {keys}",
        f"SELECT * FROM repartition('{a}', {n}, keys => ['k'], sort => true) {where}",
    ])


def run(tool, sql, extra):
    command = [tool, "sql", sql, "--format", "csv", "--quiet", "--threads", "2"] + extra
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def rows(output):
    return collections.Counter(output.splitlines())


class Round:
    def __init__(self, tool, draw, directory, tables):
        self.tool, self.draw, self.directory, self.tables = tool, draw, directory, tables

    def disturb(self, executors, done):
        """What happens to some executors, but never to all."""
        for executor in self.draw.sample(executors, self.draw.randrange(1, len(executors))):
            how = self.draw.choices([signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP], [6, 3, 1])[0]
            comes_back, waits = self.draw.random() < 0.3, self.draw.random() * LATEST * self.seconds
            if done.wait(waits):
                return
            executor.disturb(how)
            if how == signal.SIGSTOP and comes_back and not done.wait(20):
                executor.let_go()
            elif how != signal.SIGSTOP and comes_back:
                executor.start()

    def run(self, number):
        """Returns what is wrong, and whether an executor was lost."""
        in_order = self.draw.random() < 0.4
        sql = (query_in_order if in_order else query)(self.draw, self.tables)
        began = time.monotonic()
        # Otherwise small sorts are those of DataFusion, which gives rows with equal keys in any order.
        stable = ["--set", f"blockyard.prefer_resumable_plans={str(in_order).lower()}"]
        plain = run(self.tool, sql, ["--memory", "1GiB"] + stable)
        expected, error = plain.communicate(timeout=SECONDS)
        self.seconds = time.monotonic() - began
        if plain.returncode != 0:
            return f"one process fails: {sql}\n{error}", False
        count = self.draw.choice([2, 3])
        executors = [Executor(self.tool, self.directory, f"{number}-{n}", self.draw.choice(["64MiB", "128MiB", "512MiB"]))
                     for n in range(count)]
        settings = {"blockyard.cluster_exchange_min_rows": 0,
                    "blockyard.prefer_spilling_joins": self.draw.choice(["true", "false"])}
        extra = ["--cluster", ",".join(executor.address for executor in executors), "--memory", "256MiB", "--stats"] + stable
        extra += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        written = f"{self.directory}/w{number}/" if self.draw.random() < 0.35 else None
        how = self.draw.choice(["PARQUET", "CSV", "JSON"])
        statement = f"COPY ({sql}) TO '{written}' STORED AS {how}" if written else sql
        driver, done = run(self.tool, statement, extra), threading.Event()
        disturbing = threading.Thread(target=self.disturb, args=(executors, done))
        disturbing.start()
        try:
            found, error = driver.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            driver.kill()
            return f"hangs: {statement} with {extra}", False
        finally:
            done.set()
            disturbing.join()
        wrong = None
        if driver.returncode == 0 and written:
            # What text cannot tell, as nulls of CSV, is not compared.
            of_rows = lambda read: f"SELECT count(*) FROM {read}" if how != "PARQUET" else f"SELECT * FROM {read}"
            expected = run(self.tool, of_rows(f"({sql})"), ["--memory", "1GiB"]).communicate(timeout=SECONDS)[0]
            found = run(self.tool, of_rows(f"'{written}'"), ["--memory", "1GiB"]).communicate(timeout=SECONDS)[0]
            # Files have the names of columns otherwise than queries.
            expected, found = ("\n".join(text.splitlines()[1:]) for text in (expected, found))
            hidden = [name for name in os.listdir(written) if name.startswith(".")]
            wrong = f"hidden files are left, {hidden}: {statement}" if hidden else None
        if driver.returncode != 0:
            wrong = f"fails: {statement}\n{error}"
        elif in_order and not written and found != expected:
            wrong = f"rows come otherwise: {statement} with {extra}"
        elif rows(found) != rows(expected):
            missing, more = rows(expected) - rows(found), rows(found) - rows(expected)
            wrong = f"{missing.total()} rows are missing and {more.total()} are too many: {statement} with {extra}"
        wrong = wrong or self.left(executors)
        for executor in executors:
            executor.end()
        return wrong, "an executor was lost" in error

    def left(self, executors):
        """What executors that live have kept."""
        for executor in executors:
            executor.let_go()
            deadline = time.monotonic() + 20
            while executor.lives():
                status = [self.tool, "cluster", "status", "--cluster", executor.address]
                status = json.loads(subprocess.run(status, capture_output=True, text=True).stdout.splitlines()[0])
                files = [name for _, _, names in os.walk(executor.spill) for name in names if name != "lock"]
                if status.get("queries") == 0 and status.get("units") == 0 and not files:
                    break
                if time.monotonic() > deadline:
                    return f"left: {status}, {files}"
                time.sleep(0.1)
        return None


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--tool", default=os.path.join(ROOT, "target/debug/blockyard"))
    arguments.add_argument("--rounds", type=int, default=60)
    arguments.add_argument("--seed", type=int, default=1)
    arguments = arguments.parse_args()
    draw, lost, wrong = random.Random(arguments.seed), 0, []
    with tempfile.TemporaryDirectory() as directory:
        tables = []
        for number, size in enumerate([0, 10, 3_000, 20_000, 60_000]):
            path = f"{directory}/t{number}/"
            os.makedirs(path)
            made = table(draw, size)
            for part in range(draw.choice([1, 3])):
                some = made.slice(part * size // 3, size // 3 if part < 2 else size) if size else made
                pa.parquet.write_table(some, f"{path}{part}.parquet", row_group_size=draw.choice([1_000, 100_000]))
            tables.append(path)
        number, enough = 0, max(1, arguments.rounds // 20)
        # Whether an executor is lost while a query needs it depends on how fast the machine is.
        while number < arguments.rounds or lost < enough and number < 3 * arguments.rounds:
            found, was_lost = Round(arguments.tool, draw, directory, tables).run(number)
            lost += was_lost
            if found:
                wrong.append(found)
                print(f"round {number}: {found}", flush=True)
            number += 1
    print(f"{number} queries, {lost} of them lost executors, {len(wrong)} wrong")
    if lost < enough:
        sys.exit("too few executors were lost for this to say anything")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
