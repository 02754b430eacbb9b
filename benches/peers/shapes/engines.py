"""The engines that read SQL, each in a process of its own: our tool, DuckDB, and DataFusion."""

import json
import os
import shutil
import subprocess
import sys
import time

from shapes.operations import First, Iterate, Join, Shuffle, Sort, Split
from shapes.sql import query

# Batches that a peer which lets say their size gives at once; they are cut without a copy. That is faster for them.
PIECES = 8
ENGINES = ["blockyard", "duckdb", "polars", "datafusion", "daft"]


class HasNone(Exception):
    """An engine has no such operation."""


def in_bytes(limit):
    """Bytes of a limit like 1GiB."""
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    return int(limit[:-3]) * units[limit[-3:]]


def say(**what):
    """Tells the process that measures."""
    print(json.dumps(what), flush=True)


def ready():
    """Tells when all modules are loaded."""
    say(ready=time.perf_counter())


def tables(operation):
    """The tables that it reads."""
    return ["t", operation.right] if isinstance(operation, Join) else ["t"]


def tool_command(operation, job):
    """The command of our tool; results that are not files go to its standard output."""
    match operation:
        case Shuffle():
            sql = "SELECT * FROM random_shuffle(t, seed => 7)"
        case Split(parts, None):
            sql = f"SELECT * FROM repartition(t, {parts})"
        case Split(parts, key):
            sql = f"SELECT * FROM repartition(t, {parts}, keys => '{key}')"
        case _:
            sql = query(operation, "blockyard")
    command = [job["tool"], "--threads", str(job["threads"]), "--quiet", "--spill-dir", job["target"] + ".tmp"]
    command += ["--memory", job["limit"]] if job["limit"] else []
    if isinstance(operation, (First, Iterate)):
        command += ["--format", "arrow"]
        command += ["--batch-size", str(operation.batch)] if isinstance(operation, Iterate) else []
    else:
        sql = f"COPY ({sql}) TO '{job['target']}/' STORED AS PARQUET OPTIONS ('format.compression' 'snappy')"
    read = "CREATE VIEW {table} AS SELECT * FROM read_parquet('{source}/{table}/')"
    views = [read.format(table=table, source=job["source"]) for table in tables(operation)]
    return command + ["sql", ";\n".join([*views, sql])]


def consume(batches, piece):
    """Looks at the ids of all batches, none of which has more rows than `piece`."""
    import numpy as np

    rows, total, most = 0, 0, 0
    for batch in batches:
        for start in range(0, len(batch), piece):
            ids = np.asarray(batch.slice(start, piece)["id"])
            rows, total, most = rows + len(ids), total + int(ids.sum()), max(most, len(ids))
    say(rows=rows, sum=total, most=most)


def run_blockyard(operation, job):
    """Reads what our tool writes to a pipe. It is started first: a process counts as its peak that of its parent."""
    import resource

    process = subprocess.Popen(tool_command(operation, job), stdout=subprocess.PIPE)
    import pyarrow as pa

    ready()
    consume(pa.ipc.open_stream(process.stdout), operation.batch)
    if process.wait() != 0:
        raise RuntimeError(f"the tool has failed with {process.returncode}")
    peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    say(mib=sum(peaks) / 1024)


def run_duckdb(operation, job):
    import duckdb

    if isinstance(operation, Iterate):
        import numpy  # noqa: F401, which would be loaded later
        import pyarrow  # noqa: F401
    ready()
    source, target = job["source"], job["target"]
    connection = duckdb.connect()
    connection.execute(f"SET threads={job['threads']}; SET temp_directory='{target}.tmp'")
    if job["limit"]:
        connection.execute(f"SET memory_limit='{job['limit']}'")
    for table in tables(operation):
        connection.execute(f"CREATE VIEW {table} AS SELECT * FROM read_parquet('{source}/{table}/*.parquet')")
    match operation:
        case Iterate(batch):
            return consume(connection.sql(query(operation, "duckdb")).to_arrow_reader(PIECES * batch), batch)
        case First():
            connection.execute(query(operation, "duckdb"))
            places = [column[0] for column in connection.description]
            return say(first=[row[places.index("id")] for row in connection.fetchall()])
        case Shuffle():
            sql, options = "SELECT * FROM t ORDER BY random()", ""
        case Split(parts, None):
            size = sum(entry.stat().st_size for entry in os.scandir(f"{source}/t")) // parts
            sql, options = "SELECT * FROM t", f", FILE_SIZE_BYTES {size}"
        case Split(parts, key):
            sql, options = f"SELECT *, hash({key}) % {parts} AS p FROM t", ", PARTITION_BY p"
        case _:
            sql, options = query(operation, "duckdb"), ""
    os.makedirs(target)
    path = target if options else f"{target}/part.parquet"
    options += ", OVERWRITE_OR_IGNORE" if options else ""
    connection.execute(f"COPY ({sql}) TO '{path}' (FORMAT parquet, COMPRESSION snappy{options})")
    shutil.rmtree(f"{target}.tmp", ignore_errors=True)


def run_datafusion(operation, job):
    import datafusion

    if isinstance(operation, Iterate):
        import numpy  # noqa: F401, which would be loaded later
        import pyarrow  # noqa: F401
    ready()
    runtime = datafusion.RuntimeEnvBuilder().with_disk_manager_os()
    if job["limit"]:
        runtime = runtime.with_fair_spill_pool(in_bytes(job["limit"]))
    config = datafusion.SessionConfig().with_target_partitions(job["threads"])
    context = datafusion.SessionContext(config, runtime)
    for table in tables(operation):
        context.register_parquet(table, f"{job['source']}/{table}")
    match operation:
        case Iterate(batch):
            stream = context.sql(query(operation, "datafusion")).execute_stream()
            return consume((batch.to_pyarrow() for batch in stream), batch)
        case First():
            return say(first=context.sql(query(operation, "datafusion")).to_pydict()["id"])
        case Shuffle():
            # It draws anew when it merges what is sorted, if the order is by the function itself.
            sql = "SELECT * EXCEPT (r) FROM (SELECT *, random() AS r FROM t) ORDER BY r"
        case Split():
            raise HasNone
        case _:
            sql = query(operation, "datafusion")
    # Into a directory it writes several files, which have no order.
    path = f"{job['target']}/part.parquet" if isinstance(operation, (Sort, Shuffle)) else f"{job['target']}/"
    os.makedirs(job["target"])
    context.sql(f"COPY ({sql}) TO '{path}' STORED AS PARQUET OPTIONS ('format.compression' 'snappy')").collect()


def run(job, operation):
    """Runs an operation in this process; whoever has none of the kind says so."""
    from shapes import frames

    engine = globals().get(f"run_{job['engine']}") or getattr(frames, f"run_{job['engine']}")
    try:
        engine(operation, job)
    except HasNone:
        say(has_none=True)
        sys.exit(3)
