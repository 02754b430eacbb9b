"""Reads and copies of files in an object store, beside other engines, in one run.

    python -m venv target/peers && target/peers/bin/pip install -r benches/peers/requirements.txt
    cargo build --release
    target/peers/bin/python benches/peers/remote.py [--rounds 3] [--memory 1GiB] [--small 10000] [--large 24] [..]

The store is `s3_server.py`, on the same machine, which answers each request after a delay: 20 ms for many small files
of 1,000 rows, 5 ms for few large ones. Each engine runs in a process of its own. Of several rounds, in which engines
alternate, the median counts. Times are of the whole process, less that of one that does nothing. Memory is the peak
resident set, as the kernel counts it. All must give the same answer.

With `--rate 100` the small files are grouped by Blockyard alone, on a server that refuses what is more than so many
requests per second: it prints which part of that was reached, and how many requests were refused.
"""

import argparse
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ENGINES = ["blockyard", "duckdb", "polars", "daft"]
GROUP_BY = "SELECT k, count(*) AS n, sum(v) AS s FROM t GROUP BY k ORDER BY k"


def make(path, files, rows):
    """Writes files of so many rows: a number, a key, a value and a text."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    os.makedirs(path)
    random = np.random.default_rng(5)
    for number in range(files):
        text = pa.array(random.integers(0, 1 << 62, rows).astype("U"))
        table = pa.table({
            "id": np.arange(number * rows, (number + 1) * rows),
            "k": random.integers(0, 100, rows),
            "v": random.integers(0, 1000, rows),
            "text": text,
        })
        pq.write_table(table, f"{path}/part-{number:06}.parquet", row_group_size=1 << 17)


PROGRAMS = {
    "duckdb": """
import duckdb, duckdb_extension_httpfs, os
c = duckdb.connect(config={{"threads": 2, "allow_unsigned_extensions": "true"}})
installed = os.path.dirname(duckdb_extension_httpfs.__file__)
c.execute("LOAD '" + os.path.join(installed, "extensions", "v" + duckdb.__version__, "httpfs.duckdb_extension") + "'")
c.execute("CREATE SECRET (TYPE s3, KEY_ID 'a', SECRET 'b', ENDPOINT '127.0.0.1:{port}', URL_STYLE 'path', USE_SSL false)")
t = "read_parquet('s3://{bucket}/*.parquet')"
if {copy}:
    c.execute("COPY (SELECT * FROM " + t + ") TO '{out}' (FORMAT parquet, PER_THREAD_OUTPUT true)")
else:
    rows = c.execute("{query}".replace("FROM t", "FROM " + t)).fetchall()
    print(len(rows), sum(r[1] for r in rows), sum(r[2] for r in rows))
""",
    "polars": """
import polars as pl
o = {{"aws_endpoint_url": "http://127.0.0.1:{port}", "aws_access_key_id": "a", "aws_secret_access_key": "b",
     "aws_region": "us-east-1", "aws_allow_http": "true"}}
t = pl.scan_parquet("s3://{bucket}/*.parquet", storage_options=o)
if {copy}:
    t.sink_parquet("{out}/all.parquet", mkdir=True)
else:
    q = t.group_by("k").agg(pl.len().alias("n"), pl.col("v").sum().alias("s"))
    r = q.collect(engine="streaming")
    print(len(r), r["n"].sum(), r["s"].sum())
""",
    "daft": """
import daft
from daft.io import IOConfig, S3Config
o = IOConfig(s3=S3Config(endpoint_url="http://127.0.0.1:{port}", key_id="a", access_key="b", region_name="us-east-1",
                         use_ssl=False, force_virtual_addressing=False))
t = daft.read_parquet("s3://{bucket}/*.parquet", io_config=o)
if {copy}:
    t.write_parquet("{out}")
else:
    r = t.groupby("k").agg(daft.col("v").count().alias("n"), daft.col("v").sum().alias("s")).to_pydict()
    print(len(r["k"]), sum(r["n"]), sum(r["s"]))
""",
}


def command(engine, bucket, copy, out, port, memory):
    """The command of an engine, and its environment."""
    if engine != "blockyard":
        text = PROGRAMS[engine].format(port=port, bucket=bucket, copy=copy, out=out, query=GROUP_BY)
        threads = {"POLARS_MAX_THREADS": "2", "DAFT_RUNNER": "native"}
        return [sys.executable, "-c", text], {**os.environ, **threads}
    t = f"'s3://{bucket}/'"
    query = GROUP_BY.replace("FROM t", f"FROM {t}")
    sql = f"COPY (SELECT * FROM {t}) TO '{out}/' STORED AS PARQUET" if copy else (
        f"SELECT count(*), sum(n), sum(s) FROM ({query})")
    store = {
        "AWS_ENDPOINT": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
    }
    tool = [os.path.join(ROOT, "target", "release", "blockyard"), "sql", sql, "--threads", "2", "--format", "csv"]
    return tool + (["--memory", memory] if memory else []), {**os.environ, **store}


def run(arguments, environment):
    """Seconds, peak MiB and what was printed last."""
    started = time.perf_counter()
    process = subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    printed = process.stdout.read()
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    if status != 0:
        raise RuntimeError(f"{arguments[:3]} failed: {errors[-2000:]}")
    last = printed.strip().splitlines()[-1].replace(",", " ") if printed.strip() else ""
    return seconds, usage.ru_maxrss / 1024, last


def nothing(engine):
    """What a process takes that does nothing."""
    modules = {"duckdb": "import duckdb", "polars": "import polars", "daft": "import daft"}
    if engine == "blockyard":
        tool = os.path.join(ROOT, "target", "release", "blockyard")
        return min(run([tool, "sql", "SELECT 1", "--format", "csv"], dict(os.environ))[0] for _ in range(3))
    return min(run([sys.executable, "-c", modules[engine]], dict(os.environ))[0] for _ in range(3))


def serve(data, delay, rate=0):
    """A server, and its port."""
    program = os.path.join(ROOT, "benches", "peers", "s3_server.py")
    server = subprocess.Popen([sys.executable, program, data, "--delay-ms", str(delay), "--rate", str(rate)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return server, int(server.stdout.readline())


def requests_of(server):
    """How many requests it had since the last call, and how many of them it refused."""
    print("", file=server.stdin, flush=True)
    return tuple(int(number) for number in server.stdout.readline().split())


def throttled(data, rate, memory):
    """How near to the rate of a server that refuses more the tool comes."""
    server, port = serve(data, 20, rate)
    seconds, _, last = run(*command("blockyard", "small", False, "", port, memory))
    requests, refused = requests_of(server)
    reached = (requests - refused) / seconds / rate
    print(f"{requests} requests in {seconds:.1f} s, answer {last}: {reached:.2f} of the rate, "
          f"{100 * refused / requests:.1f} % refused")
    server.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", default=None)
    parser.add_argument("--small", type=int, default=10_000, help="files of 1,000 rows")
    parser.add_argument("--large", type=int, default=24, help="files of --rows rows")
    parser.add_argument("--rows", type=int, default=2_500_000)
    parser.add_argument("--engines", nargs="+", default=ENGINES)
    parser.add_argument("--directory", default=None)
    parser.add_argument("--rate", type=int, default=0, help="requests per second that the server allows")
    arguments = parser.parse_args()
    directory = arguments.directory or tempfile.mkdtemp(prefix="remote-")
    data = os.path.join(directory, "data")
    for name, files, rows in [("small", arguments.small, 1000), ("large", arguments.large, arguments.rows)]:
        if files and not os.path.exists(os.path.join(data, name)):
            # What needs much memory is done by another process: those that this one starts count its peak as theirs.
            maker = multiprocessing.get_context("spawn").Process(target=make, args=(os.path.join(data, name), files, rows))
            maker.start()
            maker.join()
            if maker.exitcode != 0:
                raise RuntimeError(f"the files of {name} could not be made")
    if arguments.rate:
        return throttled(data, arguments.rate, arguments.memory)
    base = {engine: nothing(engine) for engine in arguments.engines}
    for bucket, delay, files in [("small", 20, arguments.small), ("large", 5, arguments.large)]:
        if not files:
            continue
        server, port = serve(data, delay)
        for copy in [False, True]:
            taken, answers = {engine: [] for engine in arguments.engines}, {}
            for _ in range(arguments.rounds):
                for engine in arguments.engines:
                    out = os.path.join(directory, "out")
                    shutil.rmtree(out, ignore_errors=True)
                    seconds, memory, last = run(*command(engine, bucket, copy, out, port, arguments.memory))
                    requests, _ = requests_of(server)
                    taken[engine].append((seconds - base[engine], memory, requests))
                    answers[engine] = last
            if not copy and len(set(answers.values())) > 1:
                raise RuntimeError(f"different answers: {answers}")
            best = min(statistics.median(t for t, _, _ in taken[e]) for e in arguments.engines if e != "blockyard")
            for engine in arguments.engines:
                seconds = statistics.median(t for t, _, _ in taken[engine])
                memory, requests = max(m for _, m, _ in taken[engine]), taken[engine][-1][2]
                what = "copy" if copy else "group by"
                print(f"| {bucket} | {what} | {engine} | {seconds:.2f} s | {best / seconds:.2f} | {memory:.0f} MiB | "
                      f"{requests} |", flush=True)
        server.kill()


if __name__ == "__main__":
    main()
