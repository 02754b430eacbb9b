"""Joins on comparisons: this tool beside DuckDB, Polars and DataFusion, in one run.

    python -m venv target/peers && target/peers/bin/pip install -r benches/peers/requirements.txt
    cargo build --release
    target/peers/bin/python benches/peers/range_joins.py [--seed 1] [--rows 2000000] [--rounds 3] [--limit 60] [--update-docs]

Each query is a process of its own, with 2 threads, and rounds alternate; the fastest counts. All say how many rows there
are, and a sum over them, which must agree. One that takes more than the limit of seconds is stopped. Polars takes part
where it has such joins.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

import duckdb

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGE = os.path.join(ROOT, "docs", "reference", "benchmarks.md")
MARK = "<!-- range joins -->\n"
THREADS = 2
# What is joined, in SQL. `points` have a place x, `bands` are disjoint, `spans` overlap.
QUERIES = {
    "points in 2,000 disjoint bands": "SELECT count(*) AS n, sum(id + band) AS s FROM points JOIN bands ON x BETWEEN low AND high",
    "points in overlapping spans": "SELECT count(*) AS n, sum(id + span) AS s FROM points JOIN spans ON x >= start AND x < stop",
    "spans that overlap each other": "SELECT count(*) AS n, sum(a.span) AS s FROM spans a JOIN spans b ON a.start < b.stop AND a.stop > b.start",
    "points near each other": "SELECT count(*) AS n, sum(a.id) AS s FROM points a JOIN points b ON a.x BETWEEN b.x - 50 AND b.x + 50",
    "points in no band": "SELECT count(*) AS n, sum(id) AS s FROM points LEFT JOIN bands ON x >= low AND x < high WHERE band IS NULL",
    "points in any span": "SELECT count(*) AS n, sum(id) AS s FROM points WHERE EXISTS (SELECT 1 FROM spans WHERE x >= start AND x < stop)",
    "two comparisons and a text": "SELECT count(*) AS n, sum(id) AS s FROM points JOIN bands ON x BETWEEN low AND high AND word > label",
}
TABLES = ["points", "bands", "spans"]


def make_tables(directory, rows, seed):
    made = duckdb.connect()
    salt = random.Random(seed).randrange(1 << 30)
    place = f"(hash(i + {salt}) % 1000000000)::BIGINT"
    made.execute(f"CREATE TABLE points AS SELECT i AS id, {place} AS x, left(md5((i + {salt})::VARCHAR), 6) AS word FROM range({rows}) t(i)")
    bands = f"SELECT i AS band, i * 500000 AS low, i * 500000 + {place} % 400000 AS high, left(md5(i::VARCHAR), 6) AS label"
    made.execute(f"CREATE TABLE bands AS {bands} FROM range(2000) t(i)")
    spans = f"SELECT i AS span, {place} AS start, {place} + 1 + hash(i) % 20000 AS stop FROM range({rows // 10}) t(i)"
    made.execute(f"CREATE TABLE spans AS SELECT span, start, stop::BIGINT AS stop FROM ({spans})")
    for table in TABLES:
        made.execute(f"COPY {table} TO '{directory}/{table}.parquet' (ROW_GROUP_SIZE 122880)")


def run_peer(engine, directory, sql):
    """One query, in a process of its own."""
    paths = {table: f"{directory}/{table}.parquet" for table in TABLES}
    if engine == "DuckDB":
        session = duckdb.connect(config={"threads": THREADS})
        for table, path in paths.items():
            session.execute(f"CREATE VIEW {table} AS SELECT * FROM '{path}'")
        return session.execute(sql).fetchone()
    if engine == "DataFusion":
        import datafusion

        session = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(THREADS))
        for table, path in paths.items():
            session.register_parquet(table, path)
        return tuple(session.sql(sql).to_pylist()[0].values())
    os.environ["POLARS_MAX_THREADS"] = str(THREADS)
    import polars

    session = polars.SQLContext({table: polars.scan_parquet(path) for table, path in paths.items()})
    return session.execute(sql).collect().row(0)


def timed(command, limit):
    """Seconds, and the count and the sum that were printed."""
    started = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return None, f"more than {limit} s"
    if done.returncode:
        return None, "has none"
    answer = [line for line in done.stdout.splitlines() if line.strip()][-1]
    return time.perf_counter() - started, tuple(int(float(value or 0)) for value in answer.split(","))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", default=os.path.join(ROOT, "target", "release", "blockyard"))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=60)
    parser.add_argument("--update-docs", action="store_true")
    parser.add_argument("--peer", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        print(",".join(str(value) for value in run_peer(*arguments.peer)))
        return
    engines = ["Blockyard", "DuckDB", "Polars", "DataFusion"]
    lines = [f"| join | {' | '.join(f'{engine}: s' for engine in engines)} | of the best peer |", f"|---|{'---:|' * (len(engines) + 1)}"]
    with tempfile.TemporaryDirectory(prefix="blockyard-ranges-") as directory:
        make_tables(directory, arguments.rows, arguments.seed)
        views = "".join(f"CREATE VIEW {table} AS SELECT * FROM read_parquet('{directory}/{table}.parquet');" for table in TABLES)
        for name, sql in QUERIES.items():
            commands = {engine: [sys.executable, __file__, "--peer", engine, directory, sql] for engine in engines[1:]}
            options = ["--quiet", "--format", "csv", "--set", f"datafusion.execution.target_partitions={THREADS}"]
            commands["Blockyard"] = [arguments.tool, "sql", views + sql, *options]
            best, answers = {}, {}
            for _ in range(arguments.rounds):
                for engine in engines:
                    if isinstance(best.get(engine), str):
                        continue
                    seconds, answer = timed(commands[engine], arguments.limit)
                    best[engine] = answer if seconds is None else min(seconds, best.get(engine, seconds))
                    if seconds is not None:
                        answers[engine] = answer
            if len(set(answers.values())) != 1:
                sys.exit(f"{name}, seed {arguments.seed}: {json.dumps(answers)}")
            peers = [best[engine] for engine in engines[1:] if not isinstance(best[engine], str)]
            shown = [best[engine] if isinstance(best[engine], str) else f"{best[engine]:.2f}" for engine in engines]
            ratio = f"{min(peers) / best['Blockyard']:.2f}" if peers else ""
            lines.append(f"| {name} | {' | '.join(shown)} | {ratio} |")
            print(lines[-1], flush=True)
    text = f"{arguments.rows:,} points, seed {arguments.seed}, {THREADS} threads, the fastest of {arguments.rounds}:\n\n" + "\n".join(lines) + "\n"
    if arguments.update_docs:
        page = open(PAGE, encoding="utf-8").read()
        before, rest = page.split(MARK)
        open(PAGE, "w", encoding="utf-8").write(before + MARK + text + "<!-- end -->" + rest.split("<!-- end -->", 1)[1])


if __name__ == "__main__":
    main()
