"""Subqueries that depend on columns outside of them, in one another and behind LATERAL, give what DuckDB or SQLite gives.

    python -m venv target/oracle && target/oracle/bin/pip install -r tests/oracle/requirements.txt
    target/oracle/bin/python tests/oracle/subqueries.py [--tool target/debug/blockyard] [--seed 1] [--queries 300]

Queries over three small tables with many nulls are drawn: values, EXISTS and IN over joins of all kinds, groups, windows, LIMIT,
set operations and further subqueries. Where DuckDB and SQLite differ either will do: DuckDB refuses some joins, and SQLite takes
columns outside for never padded with nulls by an outer join.
"""

import argparse
import json
import os
import random
import re
import sqlite3
import subprocess
import sys
import tempfile

import duckdb

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# What is said where rows outside may be others when they are read again.
REFUSAL = "make a table of the rows outside first"
TABLES = {"o": ("id", "k", "m"), "b": ("x", "y"), "c": ("x", "y")}


class Drawn:
    """Queries from one seed. Each relation has columns x and y; `outer` are the columns that may be looked at outside."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.relations = 0

    def value(self):
        return None if self.maybe(0.15) else self.random.randint(0, 5)

    def rows(self):
        o = [(id, self.value(), self.value()) for id in range(8)]
        return {"o": o, "b": [(self.value(), self.value()) for _ in range(12)], "c": [(self.value(), self.value()) for _ in range(9)]}

    def maybe(self, share):
        return self.random.random() < share

    def one(self, *choices):
        return self.random.choice(choices)

    def name(self):
        self.relations += 1
        return f"t{self.relations}"

    def condition(self, columns, outer, depth):
        kind, column = self.random.random(), self.one(*columns)
        seen = outer + columns if self.maybe(0.7) else columns
        if kind < 0.55 or depth <= 0:
            other = self.one(*outer) if outer and self.maybe(0.45) else self.one(*columns, str(self.random.randint(0, 5)))
            return f"{column} {self.one('=', '=', '<', '>=', '<>')} {other}"
        if kind < 0.62:
            return f"{column} IS NULL"
        if kind < 0.70:
            return f"({self.condition(columns, outer, depth - 1)} OR {self.condition(columns, outer, depth - 1)})"
        if kind < 0.80:
            return f"{self.one('', 'NOT ')}EXISTS ({self.select(depth - 1, seen)})"
        if kind < 0.92:
            return f"{column} {self.one('IN', 'NOT IN')} ({self.select(depth - 1, seen, 1)})"
        return f"{column} {self.one('=', '<')} ({self.scalar(depth - 1, outer + columns)})"

    def scalar(self, depth, outer):
        t = self.name()
        functions = ["count(*)", f"count({t}.x)", f"sum({t}.y)", f"max({t}.x)", f"min({t}.y)", f"count(DISTINCT {t}.y)"]
        where = f" WHERE {self.condition([f'{t}.x', f'{t}.y'], outer, depth)}" if self.maybe(0.6) else ""
        having = f" HAVING count(*) > {self.random.randint(0, 2)}" if self.maybe(0.15) else ""
        return f"SELECT {self.one(*functions)} FROM {self.relation(depth, outer, t)}{where}{having}"

    def relation(self, depth, outer, name):
        if depth <= 0 or self.maybe(0.3):
            return f"{self.one('b', 'c')} AS {name}"
        return f"({self.select(depth - 1, outer)}) AS {name}"

    def select(self, depth, outer, width=2):
        kind, t = self.random.random(), self.name()
        columns = [f"{t}.x", f"{t}.y"]
        second = lambda expr: f", {expr} AS y" if width == 2 else ""
        where = lambda: f" WHERE {self.condition(columns, outer, depth)}"
        source = lambda: self.relation(depth, outer, t)
        if kind < 0.35 or depth <= 0:
            expr = columns[1] if self.maybe(0.8) or not outer else self.one(*outer)
            more = f" AND {self.condition(columns, outer, depth)}" if self.maybe(0.3) else ""
            return f"SELECT {columns[0]} AS x{second(expr)} FROM {source()}{where()}{more}"
        if kind < 0.55:
            u, join = self.name(), self.one("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
            on = f"{t}.x = {u}.{self.one('x', 'y')}"
            if self.maybe(0.3) and join != "FULL JOIN":
                on += f" AND {self.condition([f'{t}.y', f'{u}.y'], outer if self.maybe(0.3) else [], 0)}"
            after = f" WHERE {self.condition([f'{t}.x', f'{u}.y'], outer, depth)}" if self.maybe(0.5) else ""
            sides = f"{source()} {join} {self.relation(depth, outer, u)}"
            return f"SELECT {t}.x AS x{second(f'{u}.y')} FROM {sides} ON {on}{after}"
        if kind < 0.68:
            having = " HAVING count(*) > 1" if self.maybe(0.3) else ""
            counted = second(self.one("count(*)", f"sum({t}.y)", f"max({t}.y)"))
            return f"SELECT {t}.x AS x{counted} FROM {source()}{where()} GROUP BY {t}.x{having}"
        if kind < 0.76:
            return f"SELECT max({t}.x) AS x{second('count(*)')} FROM {source()}{where()}"
        if kind < 0.84:
            over = [f"rank() OVER (ORDER BY {t}.x NULLS LAST)", f"count(*) OVER (PARTITION BY {t}.y)"]
            over.append(f"sum({t}.y) OVER (PARTITION BY {t}.x)")
            return f"SELECT {self.one(*over)} AS x{second(columns[1])} FROM {source()}{where()}"
        if kind < 0.92:
            limit = f"LIMIT {self.random.randint(0, 3)}" + (f" OFFSET {self.random.randint(1, 2)}" if self.maybe(0.4) else "")
            order = f"ORDER BY 1 NULLS FIRST, 2 NULLS FIRST {limit}"
            inner = f"SELECT DISTINCT {t}.x AS x, {t}.y AS y FROM {source()}{where()} {order}"
            return f"SELECT z.x{', z.y' if width == 2 else ''} FROM ({inner}) AS z"
        one, other = self.select(depth - 1, outer, width), self.select(depth - 1, outer, width)
        operation = self.one("UNION ALL", "UNION", "EXCEPT", "INTERSECT")
        return f"SELECT * FROM ({one}) AS {t} {operation} SELECT * FROM ({other}) AS {self.name()}"

    def query(self):
        outer, depth, kind = ["o.k", "o.m", "o.id"], self.random.randint(1, 3), self.random.random()
        if kind < 0.35:
            return f"SELECT o.id, ({self.scalar(depth, outer)}) AS v FROM o"
        if kind < 0.6:
            return f"SELECT o.id, 0 AS v FROM o WHERE {self.one('', 'NOT ')}EXISTS ({self.select(depth, outer)})"
        if kind < 0.75:
            membership = f"{self.one('o.k', 'o.m')} {self.one('IN', 'NOT IN')} ({self.select(depth, outer, 1)})"
            return f"SELECT o.id, 0 AS v FROM o WHERE {membership}"
        if kind < 0.85:
            return f"SELECT o.id, CAST({self.condition(['o.k', 'o.m'], [], depth)} AS INT) AS v FROM o"
        join = self.one("CROSS JOIN LATERAL ({}) AS l", "LEFT JOIN LATERAL ({}) AS l ON l.x > 1")
        return f"SELECT o.id, coalesce(l.x, -1) * 100 + coalesce(l.y, -1) AS v FROM o {join.format(self.select(depth, outer))}"


def literal(row):
    return "(" + ", ".join("NULL" if value is None else str(value) for value in row) + ")"


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
    parser.add_argument("--queries", type=int, default=300)
    args = parser.parse_args()
    drawn, duck, lite = Drawn(args.seed), duckdb.connect(), sqlite3.connect(":memory:")
    script = []
    for table, rows in drawn.rows().items():
        columns = ", ".join(TABLES[table])
        create = f"CREATE TABLE {table} AS SELECT * FROM (VALUES {', '.join(map(literal, rows))}) AS v({columns})"
        script.append(create)
        duck.execute(create)
        lite.execute(f"CREATE TABLE {table} ({columns})")
        lite.execute(f"INSERT INTO {table} VALUES {', '.join(map(literal, rows))}")
    queries = []
    while len(queries) < args.queries:
        query = drawn.query()
        right = [rows for rows in (answers(duck, query), answers(lite, query)) if rows is not None]
        if right:
            queries.append((query, right))
    wrong, refused = 0, 0
    with tempfile.TemporaryDirectory() as directory:
        while True:
            copies = [f"COPY ({query}) TO '{directory}/{n}.json' STORED AS JSON" for n, (query, _) in enumerate(queries)]
            path = os.path.join(directory, "script.sql")
            with open(path, "w", encoding="utf-8") as file:
                file.write(";\n".join(script + [f"{copy} OPTIONS (mode 'overwrite')" for copy in copies]))
            run = subprocess.run([args.tool, "run", path, "--quiet"], capture_output=True, text=True)
            if run.returncode == 0:
                break
            if REFUSAL not in run.stderr:
                sys.exit(f"seed {args.seed}: {run.stderr}")
            del queries[int(re.search(r"statement (\d+)", run.stderr).group(1)) - 1 - len(script)]
            refused += 1
        for number, (query, right) in enumerate(queries):
            with open(os.path.join(directory, f"{number}.json"), encoding="utf-8") as file:
                rows = map(json.loads, file)
                found = sorted(str((row["id"], row.get("v"))) for row in rows)
            if found not in right:
                wrong += 1
                print(f"{query}\n  gives {found}\n  and should give {right}")
    if wrong:
        sys.exit(f"seed {args.seed}: {wrong} of {len(queries)} queries give other rows than DuckDB and SQLite")
    print(f"{len(queries)} queries give the rows of DuckDB or SQLite, {refused} are refused (seed {args.seed})")
    if refused > args.queries // 20:
        sys.exit(f"seed {args.seed}: more are refused than one in twenty")


if __name__ == "__main__":
    main()
