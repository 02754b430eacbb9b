"""The 22 queries of TPC-H over Parquet: this tool at some memory limits beside plain DataFusion and DuckDB without one.

    python -m venv target/peers && target/peers/bin/pip install -r benches/peers/requirements.txt
    cargo build --release
    target/peers/bin/python benches/peers/tpch.py [--scale 10] [--limits 2GiB 512MiB] [--threads 2] [--update-docs]

Every query is a process of its own; times are of the whole process, memory is its peak resident set as the kernel counts
it. The rows of every result are compared with DuckDB's.
"""

import argparse
import decimal
import glob
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time

import pyarrow.parquet as pq

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGE = os.path.join(ROOT, "docs", "reference", "benchmarks.md")
TABLES = ["customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier"]
MIB = 1 << 20


def query_text(number):
    with open(f"{ROOT}/sql/tpch/q{number:02}.sql") as file:
        return file.read().strip().rstrip(";")


def in_bytes(limit):
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    return int(limit[:-3]) * units[limit[-3:]]


def run_duckdb(number, source, target, threads):
    import duckdb

    connection = duckdb.connect()
    connection.execute(f"SET threads={threads}; SET temp_directory='{target}.tmp'")
    for table in TABLES:
        connection.execute(f"CREATE VIEW {table} AS SELECT * FROM '{source}/{table}.parquet'")
    connection.execute(f"COPY ({query_text(number)}) TO '{target}' (FORMAT parquet)")


def run_datafusion(number, source, target, threads):
    import datafusion

    context = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(threads))
    for table in TABLES:
        context.register_parquet(table, f"{source}/{table}.parquet")
    context.sql(f"COPY ({query_text(number)}) TO '{target}' STORED AS PARQUET").collect()


def measure(engine, limit, number, source, target, threads):
    """Seconds and mebibytes of one process; the last line of what it said if it failed."""
    if engine == "blockyard":
        tables = (f"CREATE VIEW {table} AS SELECT * FROM read_parquet('{source}/{table}.parquet')" for table in TABLES)
        script = ";\n".join([*tables, f"COPY ({query_text(number)}) TO '{target}' STORED AS PARQUET"])
        command = [f"{ROOT}/target/release/blockyard", "--threads", str(threads), "--memory", limit, "--quiet", "sql", script]
    else:
        command = [sys.executable, __file__, "--run", engine, str(number), source, target, str(threads)]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    error = process.stderr.read().decode(errors="replace")
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    failed = (error.strip().splitlines() or ["killed"])[-1] if status else None
    return seconds, usage.ru_maxrss / 1024, failed


def rows_of(path):
    """The rows of a result, in an order that rounding does not change."""

    def plain(value):
        return float(value) if isinstance(value, (int, float, decimal.Decimal)) else str(value)

    def key(row):
        return [f"{value:.3e}" if isinstance(value, float) else value for value in row]

    columns = [column.to_pylist() for column in pq.read_table(path).columns]
    return sorted(([plain(value) for value in row] for row in zip(*columns)), key=key)


def is_same(path, expected):
    rows = rows_of(path)

    def same(a, b):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=0.01) if isinstance(a, float) and isinstance(b, float) else a == b

    return len(rows) == len(expected) and all(
        len(row) == len(other) and all(map(same, row, other)) for row, other in zip(rows, expected)
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=int, default=10)
    parser.add_argument("--limits", nargs="*", default=["2GiB", "512MiB"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--queries", nargs="*", type=int, default=list(range(1, 23)))
    parser.add_argument("--source", help="a directory with a Parquet file of each table, made if it is not there")
    parser.add_argument("--update-docs", action="store_true")
    parser.add_argument("--run", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        engine, number, source, target, threads = arguments.run
        return globals()[f"run_{engine}"](int(number), source, target, int(threads))

    scratch = tempfile.mkdtemp(prefix="blockyard-tpch-")
    source = arguments.source or f"{scratch}/in"
    if not os.path.exists(source):
        generate = os.path.join(os.path.dirname(sys.executable), "tpchgen-cli")
        subprocess.run([generate, "parquet", "-s", str(arguments.scale), f"--output-dir={source}"], check=True)
    runs = [("duckdb", ""), ("datafusion", ""), *(("blockyard", limit) for limit in arguments.limits)]
    names = [f"{engine}, {limit}" if limit else engine for engine, limit in runs]
    lines = ["| query | " + " | ".join(f"{name}: s | MiB" for name in names) + " |", "|---|" + "---:|---:|" * len(runs)]
    totals, most = [0.0] * len(runs), [-math.inf] * len(runs)
    try:
        for number in arguments.queries:
            expected, cells = None, []
            for place, (engine, limit) in enumerate(runs):
                target = f"{scratch}/{place}.parquet"
                seconds, mib, failed = measure(engine, limit, number, source, target, arguments.threads)
                totals[place] += seconds
                most[place] = max(most[place], mib - (in_bytes(limit) / MIB if limit else 0))
                if failed is None and engine == "duckdb":
                    expected = rows_of(target)
                elif failed is None and (expected is None or not is_same(target, expected)):
                    failed = "WRONG"
                cells.append(f"{failed[:60] if failed else f'{seconds:.1f}'} | {mib:,.0f}")
                for path in glob.glob(f"{target}*"):
                    shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
            lines.append(f"| {number} | " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    lines.append("| all | " + " | ".join(f"{total:.1f} | {mib:,.0f}" for total, mib in zip(totals, most)) + " |")
    print("\n".join([lines[0], lines[-1]]))
    if arguments.update_docs:
        about = f"TPC-H at scale {arguments.scale}, {arguments.threads} threads. The last row has sums, and the most memory: with a limit, above it."
        mark = "<!-- tpch -->\n"
        with open(PAGE) as page:
            before, rest = page.read().split(mark, 1)
            after = rest.split("<!-- end -->\n", 1)[1]
        with open(PAGE, "w") as page:
            page.write(before + mark + "\n".join([about, "", *lines]) + f"\n<!-- end -->\n{after}")


if __name__ == "__main__":
    main()
