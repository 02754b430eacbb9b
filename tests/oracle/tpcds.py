"""All queries of TPC-DS give what DuckDB gives.

    python -m venv target/tpcds && target/tpcds/bin/pip install -r tests/oracle/tpcds.txt
    target/tpcds/bin/python tests/oracle/tpcds.py [--tool target/debug/blockyard] [--scale 0.01] [--memory 256MiB 2GiB] [--query 42] \\
        [--executors 2]

DuckDB makes the tables, which are written as Parquet, and has the queries. The tool runs each as it is written. Its rows must be among
those that DuckDB gives without LIMIT, as often at most, as many as DuckDB gives with it, and in the same order by the columns of ORDER BY.
Floating-point numbers and decimals are compared with a tolerance: an average of decimals is a decimal for DataFusion.
With executors, so many processes of one thread, which have the first of the memory limits, join and group.
"""

import argparse
import csv
import datetime
import io
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict

import duckdb
import duckdb_extension_tpcds

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

SECONDS = 300
TOLERANCE = 1e-5


def extension():
    """The path of DuckDB's extension that makes the tables and has the queries."""
    installed = os.path.dirname(duckdb_extension_tpcds.__file__)
    return os.path.join(installed, "extensions", f"v{duckdb.__version__}", "tpcds.duckdb_extension")


def make_tables(database, scale, directory):
    """Writes all tables, each as a directory with a file."""
    database.execute(f"LOAD '{extension()}'")
    database.execute(f"CALL dsdgen(sf={scale})")
    tables = [name for (name,) in database.execute("SHOW TABLES").fetchall()]
    for table in tables:
        os.makedirs(f"{directory}/{table}")
        database.execute(f"COPY {table} TO '{directory}/{table}/0.parquet' (FORMAT parquet, ROW_GROUP_SIZE 20000)")
    return tables


def start_executors(tool, number, memory, directory):
    """Processes that join and group, and the arguments that make a session use them."""
    addresses, processes = [f"unix:{directory}/{n}.sock" for n in range(number)], []
    for address in addresses:
        command = [tool, "cluster", "executor", "--listen", address, "--threads", "1", "--memory", memory]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
        processes[-1].stdout.readline()
    session = ["--cluster", ",".join(addresses), "--set", "blockyard.cluster_exchange_min_rows=1000"]
    return processes, session if number else []


def run_tool(tool, memory, views, sql, script, extra):
    """The rows of a query as text, or an error."""
    with open(script, "w") as file:
        file.write(f"{views}\n{sql};\n")
    command = [tool, "--memory", memory, "--quiet", "run", script, "--format", "csv"] + extra
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return None, f"takes more than {SECONDS} s"
    if done.returncode != 0:
        return None, f"fails: {done.stderr.strip()[-600:]}"
    return list(csv.reader(io.StringIO(done.stdout)))[1:], None


def is_inexact(kind):
    return str(kind).startswith(("DECIMAL", "DOUBLE", "FLOAT"))


def exact(value, kind):
    """A value of either side as text, where it is compared as it is."""
    if value is None or value == "":
        return ""
    if isinstance(value, (datetime.date, datetime.datetime)):
        return value.isoformat()
    text = str(value)
    # Some counts are sums of decimals for one and integers for the other.
    if "INT" in str(kind) and re.fullmatch(r"-?\d+\.0+", text):
        return text.split(".")[0]
    return text


def number(value):
    return None if value is None or value == "" else float(value)


def close(one, other):
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or (math.isnan(one) and math.isnan(other))


def split(row, kinds):
    """The columns that are compared as they are, and those that are compared with a tolerance."""
    inexact = [is_inexact(kind) for kind in kinds]
    left = tuple(exact(value, kind) for value, kind, skip in zip(row, kinds, inexact) if not skip)
    return left, [number(value) for value, use in zip(row, inexact) if use]


def difference(got, everything, limited, kinds, order):
    """What is wrong with the rows of the tool, or nothing."""
    if len(got) != limited:
        return f"{len(got)} rows instead of {limited}"
    if any(len(row) != len(kinds) for row in got):
        return f"{len(got[0])} columns instead of {len(kinds)}"
    expected = defaultdict(list)
    for row in everything:
        left, right = split(row, kinds)
        expected[left].append(right)
    for row in got:
        left, right = split(row, kinds)
        found = next((r for r in expected[left] if all(map(close, r, right))), None)
        if found is None:
            return f"the row {row} is wrong; with the same names there are {expected[left][:3]}"
        expected[left].remove(found)
    for place, (one, other) in enumerate(zip(got, everything)):
        for column in order:
            kind = kinds[column]
            left, right = one[column], other[column]
            same = close(number(left), number(right)) if is_inexact(kind) else exact(left, kind) == exact(right, kind)
            if not same:
                return f"row {place} is {one}, where {list(other)} should be"
    return None


def columns_of_order(sql, names):
    """Those of the leading keys of the last ORDER BY that are columns of the result."""
    found = re.search(r"ORDER\s+BY((?:(?!ORDER\s+BY).)*)$", sql, re.IGNORECASE | re.DOTALL)
    if not found or found.group(1).count("(") != found.group(1).count(")"):
        return []
    places = []
    for key in found.group(1).split(","):
        name = re.sub(r"\s+(ASC|DESC|NULLS\s+FIRST|NULLS\s+LAST)\b", "", f" {key.strip()}", flags=re.IGNORECASE)
        name = name.strip().lower()
        if name.isdigit():
            places.append(int(name) - 1)
        elif names.count(name) == 1:
            places.append(names.index(name))
        else:
            break
    return places


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", default=os.path.join(ROOT, "target", "debug", "blockyard"))
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("--memory", nargs="+", default=["256MiB", "2GiB"])
    parser.add_argument("--query", type=int, nargs="+", default=range(1, 100))
    parser.add_argument("--executors", type=int, default=0)
    arguments = parser.parse_args()
    database = duckdb.connect(config={"threads": 2, "allow_unsigned_extensions": "true"})
    # As DataFusion does.
    database.execute("SET default_null_order = 'nulls_last_on_asc_first_on_desc'")
    wrong, right, rows, slowest = [], 0, 0, (0, None)
    with tempfile.TemporaryDirectory(prefix="blockyard-tpcds-") as scratch:
        executors, extra = start_executors(arguments.tool, arguments.executors, arguments.memory[0], scratch)
        tables = make_tables(database, arguments.scale, scratch)
        views = "\n".join(f"CREATE VIEW {table} AS SELECT * FROM read_parquet('{scratch}/{table}/');" for table in tables)
        queries = dict(database.execute("SELECT query_nr, query FROM tpcds_queries()").fetchall())
        for query in arguments.query:
            sql = queries[query].strip().rstrip(";")
            unlimited = re.sub(r"\sLIMIT\s+\d+\s*$", "", sql, flags=re.IGNORECASE)
            result = database.execute(unlimited)
            names, kinds = [c[0].lower() for c in result.description], [c[1] for c in result.description]
            everything = result.fetchall()
            rows += len(everything)
            limited = len(database.execute(sql).fetchall())
            for memory in arguments.memory:
                begun = time.monotonic()
                got, error = run_tool(arguments.tool, memory, views, sql, f"{scratch}/query.sql", extra)
                slowest = max(slowest, (time.monotonic() - begun, f"{query} with {memory}"))
                error = error or difference(got, everything, limited, kinds, columns_of_order(unlimited, names))
                right += not error
                if error:
                    wrong.append(f"query {query} with {memory}: {error}")
        for executor in executors:
            executor.terminate()
            executor.wait()
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"the slowest was query {slowest[1]}: {slowest[0]:.1f} s")
    if wrong:
        sys.exit(1)
    print(f"{right} results, of {rows} rows, are those of DuckDB {duckdb.__version__}")


if __name__ == "__main__":
    main()
