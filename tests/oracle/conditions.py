"""Conditions of comparisons, lists, ranges, patterns and nulls, joined by AND, OR, NOT and CASE, are what DuckDB and SQLite say.

    python -m venv target/oracle && target/oracle/bin/pip install -r tests/oracle/requirements.txt
    target/oracle/bin/python tests/oracle/conditions.py [--tool target/debug/blockyard] [--seed 1] [--queries 1000]

Conditions over a small table with many nulls are drawn, and asked for as values and in WHERE.
"""

import argparse
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile

import duckdb

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TEXTS = ["'a'", "'b'", "'ab'", "''"]
PATTERNS = ["'a%'", "'%b'", "'%'", "'a'", "'_'"]


class Drawn:
    """Conditions from one seed, over columns x and y of integers and s of texts."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def one(self, *choices):
        return self.random.choice(choices)

    def rows(self):
        row = lambda id: (id, self.one(None, 0, 1, 2, 3, 4), self.one(None, 0, 1, 2, 3), self.one(None, "a", "b", "ab", ""))
        return [row(id) for id in range(40)]

    def constant(self):
        return "NULL" if self.random.random() < 0.05 else str(self.random.randint(0, 4))

    def values(self, draw):
        return ", ".join(draw() for _ in range(self.random.randint(1, 4)))

    def number(self, depth):
        kind = self.random.random()
        if depth <= 0 or kind < 0.55:
            return self.one("x", "y", "x", "y", self.constant())
        one, other = self.number(depth - 1), self.number(depth - 1)
        if kind < 0.7:
            return f"({one} {self.one('+', '-', '*')} {other})"
        if kind < 0.9:
            return f"{self.one('coalesce', 'nullif')}({one}, {other})"
        end = f" ELSE {other}" if self.random.random() < 0.6 else ""
        return f"CASE WHEN {self.condition(depth - 1)} THEN {one}{end} END"

    def simple(self, depth):
        kind, column, negated = self.random.random(), self.one("x", "y"), self.one("", "NOT ")
        if kind < 0.4:
            return f"{self.number(depth - 1)} {self.one('=', '<>', '<', '<=', '>', '>=')} {self.number(depth - 1)}"
        if kind < 0.7:
            return f"{column} {negated}IN ({self.values(self.constant)})"
        if kind < 0.8:
            return f"{column} {negated}BETWEEN {self.constant()} AND {self.constant()}"
        if kind < 0.87:
            return f"{self.one('x', 'y', 's')} IS {negated}NULL"
        if kind < 0.94:
            return f"s {negated}IN ({self.values(lambda: self.one(*TEXTS))})"
        return f"s {negated}LIKE {self.one(*PATTERNS)}"

    def condition(self, depth):
        kind = self.random.random()
        if depth <= 0 or kind < 0.3:
            return self.simple(depth)
        if kind < 0.8:
            return f"({self.condition(depth - 1)} {self.one('AND', 'OR')} {self.condition(depth - 1)})"
        if kind < 0.9:
            return f"NOT ({self.condition(depth - 1)})"
        if kind < 0.95:
            return f"({self.condition(depth - 1)}) IS {self.one('', 'NOT ')}{self.one('TRUE', 'FALSE', 'NULL')}"
        branches = [self.condition(depth - 1) for _ in range(3)]
        return "CASE WHEN {} THEN {} ELSE {} END".format(*branches)

    def query(self):
        condition = self.condition(self.random.randint(1, 4))
        if self.random.random() < 0.5:
            return f"SELECT id, CAST(({condition}) AS INT) AS v FROM t"
        return f"SELECT id, 0 AS v FROM t WHERE {condition}"


def literal(value):
    return "NULL" if value is None else repr(value)


def answers(connection, query):
    """The rows in some order, or None where the query is refused."""
    try:
        return sorted(map(str, connection.execute(query).fetchall()))
    except (duckdb.Error, sqlite3.Error):
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", default=os.path.join(ROOT, "target/debug/blockyard"))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--queries", type=int, default=1000)
    args = parser.parse_args()
    drawn, duck, lite = Drawn(args.seed), duckdb.connect(), sqlite3.connect(":memory:")
    rows = drawn.rows()
    values = ", ".join("(" + ", ".join(map(literal, row)) + ")" for row in rows)
    script = [f"CREATE TABLE t AS SELECT * FROM (VALUES {values}) AS v(id, x, y, s)"]
    duck.execute(script[0])
    lite.execute("CREATE TABLE t (id, x, y, s)")
    lite.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", rows)
    queries = []
    while len(queries) < args.queries:
        query = drawn.query()
        right = [rows for rows in (answers(duck, query), answers(lite, query)) if rows is not None]
        if right:
            queries.append((query, right))
    wrong = 0
    with tempfile.TemporaryDirectory() as directory:
        for number, (query, _) in enumerate(queries):
            script.append(f"COPY ({query}) TO '{directory}/{number}.json' STORED AS JSON")
        path = os.path.join(directory, "script.sql")
        with open(path, "w", encoding="utf-8") as file:
            file.write(";\n".join(script))
        run = subprocess.run([args.tool, "run", path, "--quiet"], capture_output=True, text=True)
        if run.returncode:
            sys.exit(f"seed {args.seed}: {run.stderr}")
        for number, (query, right) in enumerate(queries):
            with open(os.path.join(directory, f"{number}.json"), encoding="utf-8") as file:
                found = sorted(str((row["id"], row.get("v"))) for row in map(json.loads, file))
            if found not in right:
                wrong += 1
                print(f"{query}\n  gives {found}\n  and should give {right[0]}")
    if wrong:
        sys.exit(f"seed {args.seed}: {wrong} of {len(queries)} queries give other rows than DuckDB and SQLite")
    print(f"{len(queries)} queries give the rows of DuckDB or SQLite (seed {args.seed})")


if __name__ == "__main__":
    main()
