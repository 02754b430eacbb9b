"""The engines whose operations are methods of frames, each in a process of its own: Polars and Daft."""

import os

from shapes.engines import PIECES, HasNone, consume, in_bytes, ready, say
from shapes.operations import Call, First, Group, Iterate, Join, Last, Rows, Shuffle, Sort, Split, Text, Window


def translated(value, calls, column, literal):
    """What an expression is for an engine, which has functions for the calls."""
    if isinstance(value, Call):
        return calls[value.name](*(translated(argument, calls, column, literal) for argument in value.arguments))
    if isinstance(value, Text):
        return literal(value.value)
    return column(value) if isinstance(value, str) else literal(value)


def run_polars(operation, job):
    # They are read when the module is loaded.
    os.environ["POLARS_MAX_THREADS"] = str(job["threads"])
    if job["limit"]:
        os.environ["POLARS_OOC_MEMORY_BUDGET_MB"] = str(in_bytes(job["limit"]) >> 20)
        os.environ["POLARS_OOC_SPILL_DIR"] = job["target"] + ".tmp"
    import polars as pl

    if isinstance(operation, Iterate):
        import numpy  # noqa: F401, which would be loaded later
    ready()
    calls = {
        "mod": lambda a, b: a % b,
        "plus": lambda a, b: a + b,
        "times": lambda a, b: a * b,
        "upper": lambda a: a.str.to_uppercase(),
        "chars": lambda a: a.str.len_chars(),
        "octets": lambda a: a.bin.size(),
        "items": lambda a: a.list.len(),
        "first_a": lambda a: a.list.get(0, null_on_oob=True).struct.field("a"),
        "hour": lambda a: a.dt.hour(),
        "year": lambda a: a.dt.year(),
        "otherwise": lambda a, b: a.fill_null(b),
        "joined": lambda a, b: pl.concat_str(a, b, separator="/"),
        "count": lambda *a: a[0].count() if a else pl.len(),
        # Sums of short integers wrap around at their length.
        "sum": lambda a: a.cast(pl.Int64).sum(),
        "total": lambda a: a.sum(),
        "mean": lambda a: a.mean(),
        "min": lambda a: a.min(),
        "max": lambda a: a.max(),
        "distinct": lambda a: a.n_unique(),
    }

    def named(columns):
        return [translated(value, calls, pl.col, pl.lit).alias(name) for name, value in columns.items()]

    def scan(table):
        return pl.scan_parquet(f"{job['source']}/{table}/*.parquet")

    t = scan("t")
    target = f"{job['target']}/part.parquet"
    os.makedirs(job["target"])
    match operation:
        case Rows(less, columns, computed):
            t = t.filter(pl.col(less[0]) < less[1]).select([*columns, *named(computed)])
        case Group(keys, measures):
            t = t.group_by(named(keys)).agg(named(measures))
        case Join(how, right, on, left_columns, right_columns, less):
            other = scan(right) if less is None else scan(right).filter(pl.col("v") < less)
            t = t.join(other, left_on=on[0], right_on=on[1], how=how).select(left_columns + right_columns)
        case Sort(keys, limit):
            t = t.sort([key for key, _ in keys], descending=[descends for _, descends in keys])
            t = t.head(limit) if limit else t
        case Shuffle():
            t = t.with_columns(r=pl.int_range(pl.len()).shuffle(seed=1)).sort("r").drop("r")
        case Split(parts, None):
            rows = t.select(pl.len()).collect().item()
            target = pl.PartitionBy(f"{job['target']}/", max_rows_per_file=-(-rows // parts))
        case Split(parts, key):
            t = t.with_columns(p=pl.col(key).hash() % parts)
            target = pl.PartitionBy(f"{job['target']}/", key="p")
        case Window(key, order, column, columns):
            number = pl.int_range(1, pl.len() + 1).over(key, order_by=order)
            running = pl.col(column).cast(pl.Int64).cum_sum().over(key, order_by=order)
            t = t.select(*columns, n=number, running=running)
        case Last(key, order, rows, columns):
            number = pl.int_range(1, pl.len() + 1).over(key, order_by=order, descending=True)
            t = t.filter(number <= rows).select(*columns)
        case Iterate(batch):
            return consume(t.collect_batches(chunk_size=PIECES * batch, maintain_order=True), batch)
        case First(rows):
            return say(first=t.head(rows).collect()["id"].to_list())
    t.sink_parquet(target, compression="snappy", mkdir=True)


def run_daft(operation, job):
    # It has as many threads as there are processors for it.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job["threads"]])
    os.environ |= {"DAFT_PROGRESS_BAR": "0", "DO_NOT_TRACK": "true"}
    if job["limit"]:
        os.environ["DAFT_MEMORY_LIMIT"] = str(in_bytes(job["limit"]))
    import daft
    from daft import Window as DaftWindow
    from daft import functions

    if isinstance(operation, Iterate):
        import numpy  # noqa: F401, which would be loaded later
        import pyarrow  # noqa: F401
    ready()
    calls = {
        "mod": lambda a, b: a % b,
        "plus": lambda a, b: a + b,
        "times": lambda a, b: a * b,
        "upper": lambda a: a.upper(),
        "chars": lambda a: a.length(),
        "octets": lambda a: a.length(),
        "items": lambda a: a.length(),
        "first_a": lambda a: a.get(0).get("a"),
        "hour": lambda a: a.hour(),
        "year": lambda a: a.year(),
        "otherwise": lambda a, b: a.fill_null(b),
        "joined": lambda a, b: a + daft.lit("/") + b,
        "count": lambda *a: a[0].count() if a else daft.col("id").count("all"),
        "sum": lambda a: a.cast(daft.DataType.int64()).sum(),
        "total": lambda a: a.sum(),
        "mean": lambda a: a.mean(),
        "min": lambda a: a.min(),
        "max": lambda a: a.max(),
        "distinct": lambda a: a.count_distinct(),
    }

    def named(columns):
        return [translated(value, calls, daft.col, daft.lit).alias(name) for name, value in columns.items()]

    def scan(table):
        return daft.read_parquet(f"{job['source']}/{table}/*.parquet")

    t, single, by = scan("t"), False, None
    match operation:
        case Rows(less, columns, computed):
            t = t.where(daft.col(less[0]) < less[1]).select(*columns, *named(computed))
        case Group(keys, measures):
            t = t.groupby(*named(keys)).agg(*named(measures))
        case Join(how, right, on, left_columns, right_columns, less):
            other = scan(right) if less is None else scan(right).where(daft.col("v") < less)
            t = t.join(other, left_on=on[0], right_on=on[1], how=how).select(*left_columns, *right_columns)
        case Sort(keys, limit):
            t = t.sort([key for key, _ in keys], desc=[descends for _, descends in keys])
            t = t.limit(limit) if limit else t
            single = True
        case Shuffle():
            t, single = t.shuffle(seed=1), True
        case Split(parts, None):
            t = t.into_partitions(parts)
        case Split(parts, key):
            t, by = t.with_column("p", daft.col(key).hash() % parts), ["p"]
        case Window(key, order, column, columns):
            window = DaftWindow().partition_by(key).order_by(*order)
            running = window.rows_between(DaftWindow.unbounded_preceding, DaftWindow.current_row)
            running = daft.col(column).cast(daft.DataType.int64()).sum().over(running)
            t = t.select(*columns, functions.row_number().over(window).alias("n"), running.alias("running"))
        case Last(key, order, rows, columns):
            window = DaftWindow().partition_by(key).order_by(*order, desc=True)
            numbered = t.with_column("n", functions.row_number().over(window))
            t = numbered.where(daft.col("n") <= rows).select(*columns)
        case Iterate(batch):
            return consume(t.to_arrow_iter(), batch)
        case First(rows):
            return say(first=t.limit(rows).to_pydict()["id"])
        case _:
            raise HasNone
    # Several files have no order.
    path = f"{job['target']}/part.parquet" if single else job["target"]
    os.makedirs(job["target"])
    t.write_parquet(path, compression="snappy", partition_cols=by, single_file=single)
