"""Sort, shuffle, group, join, repartition: Parquet in, Parquet out, beside other engines of one machine, in one run.

    python -m venv target/peers && target/peers/bin/pip install -r benches/peers/requirements.txt
    cargo build --release
    target/peers/bin/python benches/peers/exchange.py [--rows 20000000] [--threads 2] [--limit 1GiB] [--rounds 2] [--engines ..] [--update-docs]

Rows have an id, a key with a Zipf distribution, a timestamp, a double, and 100 random bytes. Every run is a process of its
own; times are of the whole process, memory is its peak resident set as the kernel counts it. Of several rounds, in which engines
alternate, the fastest counts: a virtual machine may have to get its memory back from the host first. All write with Snappy. The
rows that are written are counted, and a sorted result must be in order from file to file.
"""

import argparse
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGE = os.path.join(ROOT, "docs", "reference", "benchmarks.md")
ENGINES = ["blockyard", "duckdb", "polars", "datafusion"]  # And "ray", which takes many times as long.
# What is done, in SQL over the input.
QUERIES = {
    "copy": "SELECT * FROM {t}",
    "sort by two keys": "SELECT * FROM {t} ORDER BY key, id",
    "random shuffle": "SELECT * FROM {t} ORDER BY random()",
    "group by 100 k": "SELECT id % 100000 AS g, count(*) AS n, sum(value) AS s FROM {t} GROUP BY g",
    "group by 10 M": "SELECT id % 10000000 AS g, count(*) AS n, sum(value) AS s FROM {t} GROUP BY g",
    "join, small side": "SELECT l.*, r.w FROM {t} l JOIN {small} r ON l.id % 100000 = r.k",
    "join, large side": "SELECT l.*, r.value AS w FROM {t} l JOIN {t} r ON l.id = r.id",
    "repartition into 64": "SELECT * FROM {t}",
    "repartition by key": "SELECT * FROM {t}",
}


def make_input(path, rows, files=20):
    """Writes the rows in row groups of 128 Ki rows."""
    os.makedirs(path)
    random = np.random.default_rng(11)
    start = 0
    for number in range(files):
        count = rows * (number + 1) // files - start
        offsets = pa.py_buffer(np.arange(0, (count + 1) * 100, 100, dtype=np.int32))
        payload = pa.py_buffer(random.integers(0, 256, count * 100, dtype=np.uint8))
        columns = {
            "id": random.permutation(count).astype(np.int64) + start,
            "key": np.minimum(random.zipf(1.2, count), 1 << 40).astype(np.int64),
            "ts": pa.array(random.integers(0, 10**15, count), pa.timestamp("us")),
            "value": random.standard_normal(count),
            "payload": pa.Array.from_buffers(pa.binary(), count, [None, offsets, payload]),
        }
        pq.write_table(pa.table(columns), f"{path}/part-{number:04}.parquet", row_group_size=1 << 17)
        start += count


def in_bytes(limit):
    """Bytes of a limit like 1GiB."""
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    return int(limit[:-3]) * units[limit[-3:]]


def blockyard(query, source, target, threads, limit):
    """The command of our tool."""
    sql = {
        "random shuffle": "SELECT * FROM random_shuffle({t}, seed => 7)",
        "repartition into 64": "SELECT * FROM repartition({t}, 64)",
        "repartition by key": "SELECT * FROM repartition({t}, 64, keys => 'key')",
    }.get(query, QUERIES[query])
    small = "(SELECT id AS k, id * 2 AS w FROM range(100000))"
    sql = sql.format(t=f"read_parquet('{source}')", small=small)
    command = [os.path.join(ROOT, "target", "release", "blockyard"), "--threads", str(threads), "--quiet"]
    command += ["--memory", limit] if limit else []
    options = "OPTIONS ('format.compression' 'snappy')"
    return command + ["sql", f"COPY ({sql}) TO '{target}/' STORED AS PARQUET {options}"]


def run_duckdb(query, source, target, threads, limit):
    import duckdb

    connection = duckdb.connect()
    connection.execute(f"SET threads={threads}; SET temp_directory='{target}.tmp'")
    if limit:
        connection.execute(f"SET memory_limit='{limit}'")
    connection.execute(f"CREATE VIEW t AS SELECT * FROM read_parquet('{source}/*.parquet')")
    connection.execute("CREATE VIEW small AS SELECT range AS k, range * 2 AS w FROM range(100000)")
    if query == "repartition by key":
        sql, options = "SELECT *, hash(key) % 64 AS p FROM t", ", PARTITION_BY p"
    else:
        sql, options = QUERIES[query].format(t="t", small="small"), ", FILE_SIZE_BYTES '40MB'" if query == "repartition into 64" else ""
    os.makedirs(target)
    path = target if options else f"{target}/part.parquet"
    options += ", OVERWRITE_OR_IGNORE" if options else ""
    connection.execute(f"COPY ({sql}) TO '{path}' (FORMAT parquet, COMPRESSION snappy{options})")
    shutil.rmtree(f"{target}.tmp", ignore_errors=True)


def run_polars(query, source, target, threads, limit):
    if limit:
        os.environ["POLARS_OOC_MEMORY_BUDGET_MB"] = str(in_bytes(limit) >> 20)
        os.environ["POLARS_OOC_SPILL_DIR"] = f"{target}.tmp"
    import polars as pl

    t = pl.scan_parquet(f"{source}/*.parquet")
    os.makedirs(target)
    if query == "sort by two keys":
        t = t.sort("key", "id")
    elif query == "random shuffle":
        t = t.with_columns(r=pl.int_range(pl.len()).shuffle(seed=1)).sort("r").drop("r")
    elif query.startswith("group"):
        n = 100_000 if "100 k" in query else 10_000_000
        t = t.group_by((pl.col("id") % n).alias("g")).agg(pl.len().alias("n"), pl.col("value").sum().alias("s"))
    elif query == "join, small side":
        small = pl.LazyFrame({"k": range(100_000), "w": range(0, 200_000, 2)})
        t = t.with_columns(m=pl.col("id") % 100_000).join(small, left_on="m", right_on="k").drop("m")
    elif query == "join, large side":
        t = t.join(pl.scan_parquet(f"{source}/*.parquet").select("id", w="value"), on="id")
    elif query == "repartition into 64":
        rows = t.select(pl.len()).collect().item()
        t.sink_parquet(pl.PartitionBy(f"{target}/", max_rows_per_file=-(-rows // 64)), compression="snappy", mkdir=True)
        return
    elif query == "repartition by key":
        t = t.with_columns(p=pl.col("key").hash() % 64)
        t.sink_parquet(pl.PartitionBy(f"{target}/", key="p"), compression="snappy", mkdir=True)
        return
    t.sink_parquet(f"{target}/part.parquet", compression="snappy")


def run_datafusion(query, source, target, threads, limit):
    import datafusion

    runtime = datafusion.RuntimeEnvBuilder().with_disk_manager_os()
    if limit:
        runtime = runtime.with_fair_spill_pool(in_bytes(limit))
    context = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(threads), runtime)
    context.register_parquet("t", source)
    context.sql("CREATE VIEW small AS SELECT value AS k, value * 2 AS w FROM range(0, 100000)").collect()
    if query.startswith("repartition"):
        raise NotImplementedError("it has no such operation")
    statement = QUERIES[query].format(t="t", small="small")
    if query == "random shuffle":
        # Sorting by random() it draws again when it merges, which is no uniform order.
        statement = "SELECT id, key, ts, value, payload FROM (SELECT *, random() AS r FROM t) ORDER BY r"
    context.sql(f"COPY ({statement}) TO '{target}/' STORED AS PARQUET OPTIONS ('format.compression' 'snappy')").collect()


def run_ray(query, source, target, threads, limit):
    import logging

    import ray
    import ray.data

    ray.init(num_cpus=threads, logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
    ray.data.DataContext.get_current().enable_progress_bars = False

    def with_remainder(n):
        return lambda batch: batch.append_column("g", pa.array(batch["id"].to_numpy() % n))

    t = ray.data.read_parquet(source)
    if query == "sort by two keys":
        t = t.sort(["key", "id"])
    elif query == "random shuffle":
        t = t.random_shuffle(seed=7)
    elif query.startswith("group"):
        n = 100_000 if "100 k" in query else 10_000_000
        groups = t.map_batches(with_remainder(n), batch_format="pyarrow").groupby("g")
        t = groups.aggregate(ray.data.aggregate.Count(), ray.data.aggregate.Sum("value"))
    elif query == "join, small side":
        small = ray.data.from_arrow(pa.table({"k": np.arange(100_000), "w": np.arange(0, 200_000, 2)}))
        t = t.map_batches(with_remainder(100_000), batch_format="pyarrow")
        t = t.join(small, "inner", 16, on=("g",), right_on=("k",)).drop_columns(["g"])
    elif query == "join, large side":
        right = ray.data.read_parquet(source, columns=["id", "value"]).rename_columns({"id": "k", "value": "w"})
        t = t.join(right, "inner", 16, on=("id",), right_on=("k",))
    elif query == "repartition into 64":
        t = t.repartition(64)
    elif query == "repartition by key":
        t = t.repartition(64, keys=["key"])
    t.write_parquet(target, compression="snappy")


def check(query, target, rows):
    """How many files there are. Fails when rows are missing, or a sorted result is not in order from file to file."""
    files = sorted(glob.glob(f"{target}/**/*.parquet", recursive=True))
    groups = {"group by 100 k": 100_000, "group by 10 M": min(rows, 10_000_000)}
    found = sum(pq.read_metadata(file).num_rows for file in files)
    if found != groups.get(query, rows):
        raise ValueError(f"{found} rows")
    last = None
    for file in files if query.startswith("sort") else []:
        for batch in pq.ParquetFile(file).iter_batches(1 << 20, columns=["key", "id"]):
            keys, ids = (batch.column(i).to_numpy().astype(np.int64) for i in range(2))
            later = (keys[1:] > keys[:-1]) | ((keys[1:] == keys[:-1]) & (ids[1:] >= ids[:-1]))
            if not later.all() or (last is not None and (keys[0], ids[0]) < last):
                return f"{len(files)}, not in order"
            last = (keys[-1], ids[-1])
    return str(len(files))


def measure(engine, query, source, target, threads, limit, rows):
    """Seconds, mebibytes and files of one process, or what went wrong."""
    shutil.rmtree(target, ignore_errors=True)
    if engine == "blockyard":
        command = blockyard(query, source, target, threads, limit)
    else:
        command = [sys.executable, __file__, "--run", engine, query, source, target, str(threads), limit or ""]
    environment = os.environ | {"POLARS_MAX_THREADS": str(threads)}
    # What the run before has written is not written to the disk during this one.
    os.sync()
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)
    error = process.stderr.read().decode(errors="replace")
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    if status:
        return {"failed": (error.strip().splitlines() or ["killed"])[-1][:90]}
    try:
        files = check(query, target, rows)
    except ValueError as e:
        return {"failed": f"wrong: {e}"}
    cpu = usage.ru_utime + usage.ru_stime
    # Ray's work is done by processes of their own.
    elsewhere = engine == "ray"
    return {"seconds": seconds, "cpu": None if elsewhere else cpu, "mib": None if elsewhere else usage.ru_maxrss / 1024, "files": files}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", default="")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--engines", nargs="*", default=ENGINES)
    parser.add_argument("--queries", nargs="*", default=list(QUERIES))
    parser.add_argument("--source", help="a directory with the input, made if it is not there")
    parser.add_argument("--update-docs", action="store_true")
    parser.add_argument("--run", nargs=6, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        engine, query, source, target, threads, limit = arguments.run
        return globals()[f"run_{engine}"](query, source, target, int(threads), limit)

    scratch = tempfile.mkdtemp(prefix="blockyard-peers-")
    source = arguments.source or f"{scratch}/in"
    if not os.path.exists(source):
        make_input(source, arguments.rows)
    lines = ["| operation | engine | seconds | CPU s | peak MiB | files |", "|---|---|---:|---:|---:|---|"]
    try:
        for query in arguments.queries:
            best = {}
            for engine in arguments.engines * arguments.rounds:
                if "failed" in best.get(engine, {}):
                    continue
                got = measure(
                    engine, query, source, f"{scratch}/out", arguments.threads, arguments.limit, arguments.rows
                )
                faster = engine not in best or got.get("seconds", 0) < best[engine]["seconds"]
                best[engine] = got if faster else best[engine]
            for engine, got in best.items():
                figures = f"failed: {got['failed']} | | |" if "failed" in got else (
                    f"{got['seconds']:.1f} | - | - | {got['files']}" if got["cpu"] is None else
                    f"{got['seconds']:.1f} | {got['cpu']:.1f} | {got['mib']:,.0f} | {got['files']}"
                )
                lines.append(f"| {query} | {engine} | {figures} |")
                print(lines[-1], flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    from importlib.metadata import version

    limit = f"a limit of {arguments.limit} where the engine takes one" if arguments.limit else "no limit"
    rounds = f"the fastest of {arguments.rounds} rounds" if arguments.rounds > 1 else "one round"
    about = (
        f"{arguments.rows:,} rows in 20 Parquet files, {arguments.threads} threads, {limit}, {rounds}. "
        + ", ".join(f"{name} {version(name)}" for name in arguments.engines if name != "blockyard")
        + "."
    )
    if arguments.update_docs:
        beside = " ray" if "ray" in arguments.engines else ""
        mark = f"<!-- exchange {arguments.limit or 'unlimited'}{beside} -->\n"
        with open(PAGE) as page:
            before, rest = page.read().split(mark, 1)
            after = rest.split("<!-- end -->\n", 1)[1]
        with open(PAGE, "w") as page:
            page.write(before + mark + "\n".join([about, "", *lines]) + f"\n<!-- end -->\n{after}")


if __name__ == "__main__":
    main()
