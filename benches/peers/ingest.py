"""An epoch of shuffled batches, Parquet in and Arrow batches out, beside other engines of one machine, in one run.

    python -m venv target/peers && target/peers/bin/pip install -r benches/peers/requirements.txt
    cargo build --release
    target/peers/bin/python benches/peers/ingest.py [--rows 20000000] [--threads 2] [--rounds 2] [--engines ..]

Rows have an id, a timestamp, a double and 100 random bytes, about 130 bytes in the files. All give batches of 1,024
rows that were shuffled among their neighbours: our tool and Ray by what they have for that, with 10,000 rows; the
others, which have nothing for it, by what their users write: chunks of 10,000 rows go into a buffer, which is put in
random order, and gives all but 5,000. So it holds 10,000 rows on average, as ours does.

Each engine runs in a process of its own, which looks at the ids of each batch. Times begin before the files are opened,
when all modules are loaded and Ray's processes run; our tool is started within them. Memory is the peak resident set as
the kernel counts it, for our tool that of the tool and that of its reader together; Ray's is not known, since its
processes are others. Of several rounds, in which engines alternate, the fastest counts. The spread is the standard
deviation of the ids of a batch, the mean over the batches: the larger, the better are rows mixed. All ids must come.
"""

import argparse
import importlib.util
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time

# What needs much memory is imported by the processes that are measured: a process counts as its own peak what the one
# that starts it has had.

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ENGINES = ["blockyard", "duckdb", "polars", "pyarrow", "ray"]
BATCH, BUFFER, FILES = 1024, 10_000, 20
# Rows that stay in a buffer to which as many as it has on average are added.
KEPT = BUFFER // 2


def make_input(path, rows):
    """Writes the rows in row groups of 128 Ki rows."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    os.makedirs(path)
    random = np.random.default_rng(11)
    start = 0
    for number in range(FILES):
        count = rows * (number + 1) // FILES - start
        offsets = pa.py_buffer(np.arange(0, (count + 1) * 100, 100, dtype=np.int32))
        payload = pa.py_buffer(random.integers(0, 256, count * 100, dtype=np.uint8))
        columns = {
            "id": np.arange(start, start + count),
            "ts": pa.array(random.integers(0, 10**15, count), pa.timestamp("us")),
            "value": random.standard_normal(count),
            "payload": pa.Array.from_buffers(pa.binary(), count, [None, offsets, payload]),
        }
        pq.write_table(pa.table(columns), f"{path}/part-{number:04}.parquet", row_group_size=1 << 17)
        start += count


def shuffled(chunks, concat, take):
    """Batches out of a buffer of the rows of chunks, which `concat` puts together and `take` in another order."""
    import numpy as np

    random = np.random.default_rng(1)
    buffer, given, waiting, rows = None, 0, [], 0
    for chunk in chunks:
        waiting.append(chunk)
        rows += len(chunk)
        if rows < BUFFER + KEPT:
            continue
        left = [] if buffer is None else [buffer.slice(given, len(buffer) - given)]
        buffer, given, waiting = take(concat(left + waiting), random.permutation(rows)), 0, []
        while rows >= KEPT + BATCH:
            yield buffer.slice(given, BATCH)
            given, rows = given + BATCH, rows - BATCH
    left = [] if buffer is None else [buffer.slice(given, len(buffer) - given)]
    buffer = take(concat(left + waiting), random.permutation(rows))
    for start in range(0, rows, BATCH):
        yield buffer.slice(start, min(BATCH, rows - start))


def shuffled_tables(batches):
    """The same for batches of Arrow."""
    import pyarrow as pa

    tables = (pa.Table.from_batches([batch]) for batch in batches if len(batch) > 0)
    return shuffled(tables, lambda parts: pa.concat_tables(parts).combine_chunks(), pa.Table.take)


def run_blockyard(source, threads, tool):
    import pyarrow as pa

    def batches():
        sql = f"SELECT * FROM local_shuffle(read_parquet('{source}'), {BUFFER}, seed => 1)"
        options = ["--format", "arrow", "--batch-size", str(BATCH), "--threads", str(threads), "--quiet"]
        process = subprocess.Popen([tool, "sql", sql, *options], stdout=subprocess.PIPE)
        yield from pa.ipc.open_stream(process.stdout)
        if process.wait() != 0:
            raise RuntimeError(f"the tool has failed with {process.returncode}")

    return batches


def run_duckdb(source, threads, tool):
    import duckdb
    import pyarrow  # noqa: F401, which would be loaded later

    def batches():
        connection = duckdb.connect()
        connection.execute(f"SET threads={threads}")
        # `execute` would copy what it gives.
        rows = connection.sql(f"SELECT * FROM read_parquet('{source}/*.parquet')")
        return shuffled_tables(rows.to_arrow_reader(BUFFER))

    return batches


def run_polars(source, threads, tool):
    # It is read when the module is loaded.
    os.environ["POLARS_MAX_THREADS"] = str(threads)
    import polars as pl

    def batches():
        chunks = pl.scan_parquet(f"{source}/*.parquet").collect_batches(chunk_size=BUFFER, maintain_order=True)
        return shuffled(chunks, pl.concat, lambda frame, order: frame[order])

    return batches


def run_pyarrow(source, threads, tool):
    import pyarrow as pa
    import pyarrow.dataset

    def batches():
        pa.set_cpu_count(threads)
        return shuffled_tables(pa.dataset.dataset(source).to_batches(batch_size=BUFFER))

    return batches


def run_ray(source, threads, tool):
    import logging

    import ray
    import ray.data

    ray.init(num_cpus=threads, logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    ray.data.DataContext.get_current().execution_options.preserve_order = True

    def batches():
        shuffle = {"local_shuffle_buffer_size": BUFFER, "local_shuffle_seed": 1}
        return ray.data.read_parquet(source).iter_batches(batch_size=BATCH, batch_format="pyarrow", **shuffle)

    return batches


def load_what_arrow_loads_late():
    """Arrow imports pandas, where it is there, when the first array is made or read: 0.15 s, which are nobody's rows."""
    if "pyarrow" in sys.modules:
        import numpy as np
        import pyarrow as pa

        np.asarray(pa.record_batch({"id": pa.array([1])})["id"])


def run(engine, source, threads, tool):
    """Runs an engine in this process, and prints what was measured."""
    import numpy as np

    batches = globals()[f"run_{engine}"](source, threads, tool)
    load_what_arrow_loads_late()
    rows, total, first, spreads = 0, 0, None, []
    started = time.perf_counter()
    for batch in batches():
        ids = np.asarray(batch["id"])
        if first is None:
            first = time.perf_counter() - started
        rows += len(ids)
        total += int(ids.sum())
        spreads.append(ids.std())
    seconds = time.perf_counter() - started
    # Of this process, and of its only child.
    peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    mib = None if engine == "ray" else (sum(peaks) if engine == "blockyard" else peaks[0]) / 1024
    spread = float(np.mean(spreads))
    print(json.dumps({"rows": rows, "sum": total, "first": first, "seconds": seconds, "mib": mib, "spread": spread}))


def measure(engine, source, arguments):
    """What a process of its own has measured, or what went wrong."""
    command = [sys.executable, __file__, "--run", engine, source, str(arguments.threads), arguments.tool]
    # Nothing is written to the disk meanwhile.
    os.sync()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["killed"])[-1][:90]}
    got = json.loads(done.stdout.strip().splitlines()[-1])
    if (got["rows"], got["sum"]) != (arguments.rows, arguments.rows * (arguments.rows - 1) // 2):
        return {"failed": f"wrong: {got['rows']} rows with the sum {got['sum']}"}
    return got


def is_there(engine, tool):
    return os.path.exists(tool) if engine == "blockyard" else importlib.util.find_spec(engine) is not None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--engines", nargs="*", default=ENGINES)
    parser.add_argument("--tool", default=os.path.join(ROOT, "target", "release", "blockyard"))
    parser.add_argument("--source", help="a directory with the input, made if it is not there")
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--make", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        engine, source, threads, tool = arguments.run
        return run(engine, source, int(threads), tool)
    if arguments.make:
        return make_input(arguments.make[0], int(arguments.make[1]))

    engines = []
    for engine in arguments.engines:
        if is_there(engine, arguments.tool):
            engines.append(engine)
        else:
            print(f"{engine} is left out: it is not there")
    scratch = tempfile.mkdtemp(prefix="blockyard-peers-")
    source = os.path.abspath(arguments.source or f"{scratch}/in")
    best = {}
    try:
        if not os.path.exists(source):
            subprocess.run([sys.executable, __file__, "--make", source, str(arguments.rows)], check=True)
        size = sum(os.path.getsize(f"{source}/{file}") for file in os.listdir(source))
        print(
            f"{arguments.rows:,} rows of {size / arguments.rows:.0f} bytes in {FILES} Parquet files, batches of "
            f"{BATCH:,}, shuffled by {BUFFER:,}, {arguments.threads} threads, the fastest of {arguments.rounds}"
        )
        for engine in engines * arguments.rounds:
            if "failed" in best.get(engine, {}):
                continue
            got = measure(engine, source, arguments)
            print(f"{engine}: {got}", file=sys.stderr, flush=True)
            faster = engine not in best or got.get("seconds", 0) < best[engine]["seconds"]
            best[engine] = got if faster else best[engine]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print("| engine | seconds | times as long | first batch s | times as long | peak MiB | times as much | spread |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    ours = best.get("blockyard", {})
    for engine, got in best.items():
        if "failed" in got:
            print(f"| {engine} | failed: {got['failed']} | | | | | | |")
            continue
        figures = []
        for key, digits in [("seconds", 1), ("first", 3), ("mib", 0)]:
            figures.append("-" if got[key] is None else f"{got[key]:,.{digits}f}")
            figures.append(f"{got[key] / ours[key]:.2f}" if got[key] is not None and ours.get(key) else "-")
        print(f"| {engine} | {' | '.join(figures)} | {got['spread']:,.0f} |")
    return 1 if any("failed" in got for got in best.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
