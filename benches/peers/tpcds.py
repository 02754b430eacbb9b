"""The 99 queries of TPC-DS over Parquet: this tool beside DuckDB, and without each rule that can be switched off.

    python -m venv target/tpcds && target/tpcds/bin/pip install -r tests/oracle/tpcds.txt
    cargo build --release
    target/tpcds/bin/python benches/peers/tpcds.py [--scale 1] [--memory 2GiB] [--rounds 2] [--queries 72 4] [--update-docs]

Each query is a process of its own for the tool; DuckDB runs all in one, each by itself. So the time of a process that
does nothing is measured too, and taken off those of the tool. Of several rounds, in which both take turns, the fastest
counts. Rows are compared with those of DuckDB as `tests/oracle/tpcds.py` does, where they are more than a LIMIT keeps
by their number only: ties may be broken in other ways.
"""

import argparse
import importlib.util
import math
import os
import sys
import tempfile
import time

import duckdb

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGE = os.path.join(ROOT, "docs", "reference", "benchmarks.md")
MARK = "<!-- tpcds -->\n"
# Options of rules that plain queries can be faster by.
RULES = ["join_order", "late_materialization", "shared_subplans", "group_before_joins", "coded_texts",
         "merged_aggregates", "fewer_tasks", "rolled_up_groups"]


def oracle():
    """The check of the same queries, which makes the tables and runs the tool."""
    spec = importlib.util.spec_from_file_location("oracle", f"{ROOT}/tests/oracle/tpcds.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def timed(run):
    started = time.perf_counter()
    return run(), time.perf_counter() - started


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", default=os.path.join(ROOT, "target", "release", "blockyard"))
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--queries", type=int, nargs="+", default=range(1, 100))
    parser.add_argument("--source", help="a directory for the tables, made if it is not there")
    parser.add_argument("--update-docs", action="store_true")
    arguments = parser.parse_args()
    checks = oracle()
    with tempfile.TemporaryDirectory(prefix="blockyard-tpcds-") as scratch:
        source = arguments.source or f"{scratch}/in"
        made = duckdb.connect(config={"threads": 2, "allow_unsigned_extensions": "true"})
        made.execute(f"LOAD '{checks.extension()}'")
        if not os.path.exists(source):
            checks.make_tables(made, arguments.scale, source)
        tables = sorted(os.listdir(source))
        queries = dict(made.execute("SELECT query_nr, query FROM tpcds_queries()").fetchall())
        made.close()
        peer = duckdb.connect(config={"threads": 2, "temp_directory": f"{scratch}/duckdb"})
        peer.execute("SET default_null_order = 'nulls_last_on_asc_first_on_desc'")
        for table in tables:
            peer.execute(f"CREATE VIEW {table} AS SELECT * FROM '{source}/{table}/*.parquet'")
        views = "\n".join(f"CREATE VIEW {table} AS SELECT * FROM read_parquet('{source}/{table}/');" for table in tables)
        runs = {"as it is": views}
        for rule in RULES:
            runs[f"without {rule}"] = f"SET blockyard.optimize_{rule} = false;\n{views}"

        def tool(views, sql):
            return checks.run_tool(arguments.tool, arguments.memory, views, sql, f"{scratch}/query.sql", [])

        start = min(timed(lambda: tool(views, "SELECT 1"))[1] for _ in range(5))
        lines = []
        for query in arguments.queries:
            sql, best, wrong = queries[query].strip().rstrip(";"), {}, None
            for _ in range(arguments.rounds):
                rows, seconds = timed(lambda: peer.execute(sql).fetchall())
                best["DuckDB"] = min(seconds, best.get("DuckDB", math.inf))
                for name, settings in runs.items():
                    (got, error), seconds = timed(lambda: tool(settings, sql))
                    best[name] = min(max(seconds - start, 0.001), best.get(name, math.inf))
                    wrong = error or wrong or (len(got) != len(rows) and f"{len(got)} rows, not {len(rows)}") or None
            lines.append((best["as it is"] / best["DuckDB"], query, best, wrong))
            print(query, {name: round(seconds, 2) for name, seconds in best.items()}, wrong or "", flush=True)
    lines.sort(key=lambda line: -line[0])
    names = ["DuckDB", *runs]
    sums = {name: sum(best[name] for _, _, best, _ in lines) for name in names}
    factor = math.exp(sum(math.log(ratio) for ratio, *_ in lines) / len(lines))
    table = ["| query | " + " | ".join(f"{name}: s" for name in names) + " | of DuckDB's |", "|---|" + "---:|" * (len(names) + 1)]
    for ratio, query, best, wrong in lines:
        cells = " | ".join(f"{best[name]:.2f}" for name in names)
        table.append(f"| {query} | {cells} | {ratio:.2f}{f', {wrong}' if wrong else ''} |")
    table.append("| all | " + " | ".join(f"{sums[name]:.1f}" for name in names) + f" | {sums['as it is'] / sums['DuckDB']:.2f} |")
    slower = []
    for rule in RULES:
        by_rule = [query for _, query, best, _ in lines if best["as it is"] > 1.1 * best[f"without {rule}"] + 0.05]
        slower.append(f"{', '.join(map(str, by_rule)) or 'none'} by {rule}")
    about = (
        f"TPC-DS at scale {arguments.scale:g}, 2 threads, {arguments.memory} for the tool and no limit for DuckDB "
        f"{duckdb.__version__}, the fastest of {arguments.rounds} rounds. The geometric mean of the last column is "
        f"{factor:.2f}. More than 1.1 times (and 0.05 s) slower by a rule: {'; '.join(slower)}. "
        f"{sum(bool(wrong) for *_, wrong in lines)} of {len(lines)} are wrong."
    )
    print("\n".join([about, table[0], table[-1]]))
    if arguments.update_docs:
        with open(PAGE) as page:
            before, rest = page.read().split(MARK, 1)
        with open(PAGE, "w") as page:
            page.write(before + MARK + "\n".join([about, "", *table]) + "\n<!-- end -->\n" + rest.split("<!-- end -->\n", 1)[1])


if __name__ == "__main__":
    sys.exit(main())
