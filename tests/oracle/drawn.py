"""Drawn queries, in the tool, in DuckDB and in SQLite. `subqueries.py`, `conditions.py` and `windows.py` draw them."""

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
# What is said where rows outside of a subquery may be others when they are read again.
REFUSAL = "make a table of the rows outside first"


def arguments(description, queries):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", default=os.path.join(ROOT, "target/debug/blockyard"))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--queries", type=int, default=queries)
    return parser.parse_args()


def literal(value):
    return "NULL" if value is None else repr(value)


def answers(connection, query):
    """The rows in some order, or None where the query is refused."""
    try:
        return sorted(map(str, connection.execute(query).fetchall()))
    except (duckdb.Error, sqlite3.Error):
        return None


def compare(args, tables, draw, settings=()):
    """Fails where the tool gives other rows than both others. `tables` has the columns and rows of each by its name;
    `draw()` gives a query with columns id and v; the tool has `settings`."""
    duck, lite, script = duckdb.connect(), sqlite3.connect(":memory:"), list(settings)
    for table, (columns, rows) in tables.items():
        values = ", ".join("(" + ", ".join(map(literal, row)) + ")" for row in rows)
        create = f"CREATE TABLE {table} AS SELECT * FROM (VALUES {values}) AS v({', '.join(columns)})"
        script.append(create)
        duck.execute(create)
        lite.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
        lite.execute(f"INSERT INTO {table} VALUES {values}")
    queries = []
    while len(queries) < args.queries:
        query = draw()
        right = [rows for rows in (answers(duck, query), answers(lite, query)) if rows is not None]
        if right:
            queries.append((query, right))
    wrong, refused = 0, 0
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "script.sql")
        to = lambda number: f"'{directory}/{number}.json' STORED AS JSON OPTIONS (mode 'overwrite')"
        while True:
            copies = [f"COPY ({query}) TO {to(number)}" for number, (query, _) in enumerate(queries)]
            with open(path, "w", encoding="utf-8") as file:
                file.write(";\n".join(script + copies))
            run = subprocess.run([args.tool, "run", path, "--quiet"], capture_output=True, text=True)
            if run.returncode == 0:
                break
            if REFUSAL not in run.stderr:
                sys.exit(f"seed {args.seed}: {run.stderr}")
            del queries[int(re.search(r"statement (\d+)", run.stderr).group(1)) - 1 - len(script)]
            refused += 1
        for number, (query, right) in enumerate(queries):
            with open(os.path.join(directory, f"{number}.json"), encoding="utf-8") as file:
                found = sorted(str((row.get("id"), row.get("v"))) for row in map(json.loads, file))
            if found not in right:
                wrong += 1
                print(f"{query}\n  gives {found}\n  and should give {right}")
    if wrong:
        sys.exit(f"seed {args.seed}: {wrong} of {len(queries)} queries give other rows than DuckDB and SQLite")
    print(f"{len(queries)} queries give the rows of DuckDB or SQLite, {refused} are refused (seed {args.seed})")
    if refused > args.queries // 20:
        sys.exit(f"seed {args.seed}: more are refused than one in twenty")
