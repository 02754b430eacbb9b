"""What a result is, in few figures that do not depend on the order of its rows, and whether that order is right."""

import glob
import json

from shapes.operations import First, Iterate, Shuffle, Sort, Split

# Rows in which the mean of ids tells whether they are mixed.
PIECE = 1 << 14


def look(operation, plan, columns, target):
    """Figures of the files that an engine has written, computed by DuckDB, and what is wrong with their order."""
    import duckdb

    files = sorted(glob.glob(f"{target}/**/*.parquet", recursive=True))
    connection = duckdb.connect()
    connection.execute("SET threads=2; SET TimeZone='UTC'")
    names = "[" + ", ".join(f"'{file}'" for file in files) + "]"
    connection.execute(
        f"CREATE VIEW result AS SELECT * FROM read_parquet({names}, hive_partitioning=false, filename='_file')"
    )
    kinds = {name: kind for name, kind, *_ in connection.execute("DESCRIBE result").fetchall() if name != "_file"}
    if isinstance(operation, Split):
        # Whoever makes a directory for each part may have a column for it.
        kinds = {name: kind for name, kind in kinds.items() if name in columns}
    got = figures(connection, {name: plain(name, kind) for name, kind in sorted(kinds.items())})
    wrong = None
    if isinstance(operation, Sort):
        wrong = order(operation.keys, files)
    elif isinstance(operation, Shuffle):
        wrong = mixed(plan.rows, files)
    elif isinstance(operation, Split) and operation.key:
        wrong = apart(connection, operation.key)
    return {"files": len(files), "figures": got, "wrong": wrong}


def plain(name, kind):
    """A word for the type of a column, and an expression that is the same for all types of that word."""
    column = f'"{name}"'
    if kind.startswith("DECIMAL"):
        return "decimal", f"CAST({column} AS DECIMAL(38, 6))"
    if "STRUCT" in kind:
        return "list", f"CAST({column} AS STRUCT(a BIGINT, b DOUBLE, c VARCHAR)[])"
    if "INT" in kind:
        return "integer", f"CAST({column} AS BIGINT)"
    if kind in ("FLOAT", "DOUBLE"):
        return "float", f"CAST({column} AS DOUBLE)"
    if kind.startswith("TIMESTAMP"):
        return "timestamp" + (" of a zone" if "ZONE" in kind else ""), f"epoch_us({column})"
    return kind.lower(), column


def figures(connection, columns):
    """Rows, and sums for each column: of hashes where values are exact, else of values, also weighted by the row."""
    exact = [value for kind, value in columns.values() if kind != "float"]
    row = f"hash({', '.join(exact)})" if exact else "1"
    sums = {"": {"rows": "count(*)", "hash": f"CAST(sum(CAST({row} AS HUGEINT)) AS VARCHAR)"}}
    for name, (kind, value) in columns.items():
        if kind == "float":
            sums[name] = {
                "count": f"count({value})",
                "sum": f"sum({value})",
                "weighted": f"sum({value} * CAST({row} % 1021 AS DOUBLE))",
                "size": f"sum(abs({value}))",
            }
        else:
            sums[name] = {"hash": f"CAST(sum(CAST(hash({value}) AS HUGEINT)) AS VARCHAR)"}
    flat = [value for figures in sums.values() for value in figures.values()]
    got = iter(connection.execute(f"SELECT {', '.join(flat)} FROM result").fetchone())
    found = {name: {figure: next(got) for figure in figures} for name, figures in sums.items()}
    for name, (kind, _) in columns.items():
        found[name]["kind"] = kind
    return found


def difference(got, expected):
    """How figures differ from others, or None. Sums of floats may differ by what their order makes."""
    if got.get("", got) != expected.get("", expected) and "rows" in got.get("", {}):
        if got[""]["rows"] != expected[""]["rows"]:
            return f"{got['']['rows']:,} rows in place of {expected['']['rows']:,}"
    if got.keys() != expected.keys():
        return f"the columns {sorted(got)} in place of {sorted(expected)}"
    for name in sorted(got, reverse=True):
        a, b = got[name], expected[name]
        if not isinstance(a, dict):
            if a != b:
                return f"{name} is {a} in place of {b}"
        elif a.get("kind") != b.get("kind"):
            return f"{name} is {a['kind']} in place of {b['kind']}"
        elif a.get("kind") == "float":
            for figure, scale in [("sum", 1), ("weighted", 1021), ("size", 1)]:
                slack = 1e-9 * scale * max(b["size"] or 0, 1e-300)
                if a["count"] != b["count"] or not abs((a[figure] or 0) - (b[figure] or 0)) <= slack:
                    return f"{name} has other values"
        elif a != b:
            return f"{name} has other values" if name else "values are in other rows"
    return None


def order(keys, files):
    """What is wrong with the order of the rows, from file to file."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    names = [key for key, _ in keys]
    last = None
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(1 << 18, columns=names):
            table = pa.Table.from_batches([batch]).select(names)
            table = pa.table([pc.cast(c, pa.string()) if is_text(c.type) else c for c in table.columns], names)
            table = table if last is None else pa.concat_tables([last, table], promote_options="permissive")
            # Whether a row is equal to the next one so far, and whether it comes too late.
            equal, late = pa.scalar(True), pa.scalar(False)
            for name, descends in keys:
                column = table[name].combine_chunks()
                before, after = column.slice(0, len(column) - 1), column.slice(1)
                is_late = pc.less(before, after) if descends else pc.greater(before, after)
                late = pc.or_(late, pc.and_(equal, is_late))
                equal = pc.and_(equal, pc.equal(before, after))
            if len(table) > 1 and pc.any(late).as_py():
                return "not in order"
            last = table.slice(len(table) - 1)
    return None


def is_text(kind):
    import pyarrow as pa

    return pa.types.is_large_string(kind) or pa.types.is_string_view(kind) or pa.types.is_dictionary(kind)


def mixed(rows, files):
    """Whether rows of all places are everywhere: ids rise from file to file of the input, but not within one."""
    import numpy as np
    import pyarrow.parquet as pq

    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(PIECE, columns=["id"]):
            ids = batch.column(0).to_numpy()
            # Six times the standard deviation of such a mean.
            if abs(ids.mean() / rows - 0.5) > 6 / np.sqrt(12 * len(ids)):
                return "not in random order"
    return None


def apart(connection, key):
    """Whether rows of a key are together: in one directory, or in one file. One block may be several files."""
    part = "CASE WHEN _file LIKE '%/p=%' THEN regexp_replace(_file, '/[^/]*$', '') ELSE _file END"
    sql = f"SELECT count(DISTINCT {key}), count(DISTINCT ({key}, {part})) FROM result"
    keys, pairs = connection.execute(sql).fetchone()
    return f"keys are in {pairs / keys:.1f} files each" if pairs > 1.5 * keys else None


def look_at_first(operation, plan, said, stream):
    """Some rows: how many there are, and whether they are different ones of the table."""
    if stream:
        import pyarrow as pa

        with open(stream, "rb") as file:
            ids = pa.ipc.open_stream(file).read_all()["id"].to_pylist()
    else:
        ids = said["first"]
    good = len(set(ids)) == operation.rows and all(0 <= id < plan.rows for id in ids)
    return {"files": 0, "figures": {"rows": len(ids)}, "wrong": None if good else f"the ids {ids}"}


def look_at_batches(operation, plan, said):
    figures = {"rows": said["rows"], "sum": said["sum"]}
    wrong = None if said["most"] <= operation.batch else f"a batch of {said['most']:,} rows"
    return {"files": 0, "figures": figures, "wrong": wrong}


def check(operation, plan, columns, job, said):
    """Prints what a result is; runs in a process of its own."""
    match operation:
        case First():
            got = look_at_first(operation, plan, said, job["output"] if job["engine"] == "blockyard" else None)
        case Iterate():
            got = look_at_batches(operation, plan, said)
        case _:
            got = look(operation, plan, columns, job["target"])
    print(json.dumps(got))
