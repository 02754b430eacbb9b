"""Sorts, groups, joins, shuffles and repartitions of random rows give what DuckDB gives.

    python -m venv target/oracle && target/oracle/bin/pip install -r tests/oracle/requirements.txt
    target/oracle/bin/python tests/oracle/exchange.py [--tool target/debug/blockyard] [--seed 1] [--rows 60000]

Tables of random rows are written as Parquet: keys with nulls, NaN, -0.0, infinities, texts from empty to long, decimals, timestamps
with a zone, and structs and lists as payload; without rows, with one, with equal keys only, and with a key that nine of ten rows
have. The tool runs all queries twice, with plenty of memory and with a little, where joins and sorts go to disk; DuckDB runs them
once. Results are compared as multisets of rows, and those of sorts also by their order.
"""

import argparse
import os
import subprocess
import sys
import tempfile

import duckdb

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# The key k of a table, from a random number r from 0 to 1.
TABLES = {
    "mixed": "CASE WHEN r < 0.1 THEN NULL ELSE (r * r * 5000)::BIGINT END",
    "equal": "7::BIGINT",
    "hot": "CASE WHEN r < 0.9 THEN -1 ELSE (r * 100000)::BIGINT END",
    "different": "(id * 7919) % 1000003",
    "empty": "0::BIGINT",
    "single": "0::BIGINT",
}

# Queries over {t}, and a second table {u} with a row for some of the keys. What is different for DuckDB stands behind a bar.
# Sums with 0.0 have no -0.0, which DataFusion sorts before 0.0.
QUERIES = {
    "sort": "SELECT * FROM {t} ORDER BY k, id",
    "sort texts": "SELECT * FROM {t} ORDER BY s DESC NULLS FIRST, d NULLS LAST, id DESC",
    "sort floats": "SELECT * FROM {t} ORDER BY x + 0.0 NULLS LAST, z DESC NULLS LAST",
    "shuffle": "SELECT * FROM random_shuffle({t}, seed => 5) | SELECT * FROM {t}",
    "by keys": "SELECT * FROM repartition({t}, 7, keys => ['k', 's']) | SELECT * FROM {t}",
    "by ranges": "SELECT * FROM repartition({t}, keys => 'd', boundaries => [-3, 2.5]) | SELECT * FROM {t}",
    "into equal parts": "SELECT * FROM repartition({t}, 9, shuffle => true) | SELECT * FROM {t}",
    "group": "SELECT k, count(*) AS n, count(x) AS m, sum(id) AS i, min(s) AS a, max(d) AS b, max(z) AS c FROM {t} GROUP BY k",
    "group by texts": "SELECT s, d, count(*) AS n, min(id) AS i FROM {t} GROUP BY s, d",
    "group by floats": "SELECT x, count(*) AS n, sum(id) AS i FROM {t} GROUP BY x",
    "group by times": "SELECT z, b, count(DISTINCT k) AS n FROM {t} GROUP BY z, b",
    "distinct": "SELECT DISTINCT d, b, p FROM {t}",
    "inner join": "SELECT t.*, u.id AS uid, u.s AS us FROM {t} t JOIN {u} u ON t.k = u.k",
    "left join": "SELECT t.id, t.k, u.id AS uid, u.p AS up FROM {t} t LEFT JOIN {u} u ON t.k = u.k AND u.id % 3 <> 0",
    "right join": "SELECT t.id, t.l, u.id AS uid, u.k AS uk FROM {t} t RIGHT JOIN {u} u ON t.k = u.k",
    "full join": "SELECT t.id, t.s, u.id AS uid, u.s AS us FROM {t} t FULL JOIN {u} u ON t.k = u.k AND t.b = u.b",
    "join of texts": "SELECT t.id, u.id AS uid FROM {t} t JOIN {u} u ON t.s = u.s AND t.d = u.d",
    "join of floats": "SELECT t.id, u.id AS uid FROM (SELECT * FROM {t} WHERE id % 50 = 0) t JOIN {u} u ON t.x = u.x",
    "semi join": "SELECT t.id, t.l FROM {t} t WHERE EXISTS (SELECT 1 FROM {u} u WHERE u.k = t.k AND u.id <> t.id)",
    "anti join": "SELECT t.id, t.p FROM {t} t WHERE NOT EXISTS (SELECT 1 FROM {u} u WHERE u.k = t.k)",
    "not in": "SELECT t.id FROM {t} t WHERE t.k NOT IN (SELECT k FROM {u} WHERE k IS NOT NULL)",
    "in or": "SELECT t.id FROM {t} t WHERE t.id % 5 = 0 OR t.k IN (SELECT k FROM {u} WHERE id % 2 = 0)",
}

# By what the result of a sort is in order, as DuckDB compares.
ORDERS = {
    "sort": "k NULLS LAST, id",
    "sort texts": "s DESC NULLS FIRST, d NULLS LAST, id DESC",
    "sort floats": "x NULLS LAST, z DESC NULLS LAST",
    "by ranges": "d NULLS LAST",
}


def make_table(database, directory, name, key, rows, seed):
    """Writes a table in two files, and one with a row for some of its keys."""
    rows = {"empty": 0, "single": 1}.get(name, rows)
    database.execute(f"SELECT setseed({(seed % 100) / 100})")
    table = f"""
        SELECT id, {key} AS k,
            CASE WHEN r2 < 0.1 THEN NULL WHEN r2 < 0.2 THEN '' ELSE repeat(chr(97 + (r3 * 26)::INT % 26), (r2 * r2 * 40)::INT) || 'ä' END AS s,
            CASE WHEN r3 < 0.05 THEN NULL WHEN r3 < 0.1 THEN 'NaN'::DOUBLE WHEN r3 < 0.15 THEN -0.0::DOUBLE WHEN r3 < 0.2 THEN 0.0::DOUBLE
                WHEN r3 < 0.25 THEN 'Infinity'::DOUBLE WHEN r3 < 0.3 THEN '-Infinity'::DOUBLE ELSE round((r - 0.5) * 1000) END AS x,
            CASE WHEN r < 0.05 THEN NULL ELSE ((r2 - 0.5) * 20)::DECIMAL(12, 2) END AS d,
            to_timestamp(1700000000 + (r3 * 1000)::INT) AS z,
            CASE WHEN r2 < 0.3 THEN NULL ELSE r3 < 0.5 END AS b,
            {{'a': (r * 10)::INT, 'b': CASE WHEN r2 < 0.5 THEN 'x' END}} AS p,
            CASE WHEN r3 < 0.1 THEN NULL ELSE [(r * 3)::INT, NULL, id] END AS l
        FROM (SELECT range AS id, random() AS r, random() AS r2, random() AS r3 FROM range({rows}))"""
    database.execute(f"CREATE TABLE made AS {table}")
    # Of keys that few rows have, rather than of a hot one, which would give all pairs of rows.
    other = "SELECT * FROM made WHERE k IS NULL OR id % 7 = 0 QUALIFY row_number() OVER (PARTITION BY k ORDER BY id) <= 2"
    for part, source in [("t", "SELECT * FROM made"), ("u", other)]:
        os.makedirs(f"{directory}/{name}/{part}")
        for number, half in enumerate(["id % 2 = 0", "id % 2 = 1"]):
            path = f"{directory}/{name}/{part}/{number}.parquet"
            database.execute(f"COPY (SELECT * FROM ({source}) WHERE {half} ORDER BY hash(id)) TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 10000)")
    database.execute("DROP TABLE made")


def run_tool(tool, directory, out, options):
    """Writes the results of all queries over all tables into `out`."""
    statements = []
    for table in TABLES:
        for query, sql in QUERIES.items():
            sql = sql.split("|")[0].format(t=f"'{directory}/{table}/t/'", u=f"'{directory}/{table}/u/'")
            statements.append(f"COPY ({sql}) TO '{out}/{table}/{query.replace(' ', '_')}/' STORED AS PARQUET;")
    script = f"{out}.sql"
    with open(script, "w") as file:
        file.write("\n".join(statements))
    subprocess.run([tool, *options, "--quiet", "run", script], check=True, stdout=subprocess.DEVNULL)


def difference(database, got, sql, order):
    """What is wrong with a result, or nothing."""
    database.execute(f"CREATE OR REPLACE VIEW got AS SELECT * FROM read_parquet('{got}/*.parquet')")
    columns = [row[0] for row in database.execute("DESCRIBE got").fetchall()]
    database.execute(f"CREATE OR REPLACE TABLE expected AS {sql}")
    # Columns by name: -0.0 and 0.0 are equal, as NaN and NaN are.
    names = ", ".join(f'"{name}"' for name in columns)
    counts = [database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("got", "expected")]
    if counts[0] != counts[1]:
        return f"{counts[0]} rows instead of {counts[1]}"
    for one, other, what in [("got", "expected", "too many"), ("expected", "got", "missing")]:
        rows = database.execute(f"SELECT {names} FROM {one} EXCEPT ALL SELECT {names} FROM {other}").fetchmany(3)
        if rows:
            return f"rows are {what}, such as {rows}"
    if order:
        # Rows in the order of the files, and the rank that each should have at least.
        wrong = f"""
            SELECT count(*) FROM (
                SELECT rank() OVER (ORDER BY {order}) AS rank, place
                FROM (SELECT *, row_number() OVER () AS place FROM got))
            WHERE rank > place"""
        if database.execute(wrong).fetchone()[0]:
            return "rows are not in order"
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", default=os.path.join(ROOT, "target", "debug", "blockyard"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, default=60_000)
    arguments = parser.parse_args()
    database = duckdb.connect(config={"threads": 2})
    wrong = []
    with tempfile.TemporaryDirectory(prefix="blockyard-oracle-") as scratch:
        for name, key in TABLES.items():
            make_table(database, f"{scratch}/in", name, key, arguments.rows, arguments.seed)
        modes = {
            "plenty of memory": [],
            "little memory": ["--memory", "32MiB", "--set", "blockyard.prefer_spilling_joins=true"],
        }
        for mode, options in modes.items():
            out = f"{scratch}/{mode.split()[0]}"
            os.makedirs(out)
            run_tool(arguments.tool, f"{scratch}/in", out, options)
            for table in TABLES:
                for query, sql in QUERIES.items():
                    t, u = (f"read_parquet('{scratch}/in/{table}/{part}/*.parquet')" for part in "tu")
                    sql = sql.split("|")[-1].format(t=t, u=u)
                    got = f"{out}/{table}/{query.replace(' ', '_')}"
                    if found := difference(database, got, sql, ORDERS.get(query)):
                        wrong.append(f"{query} of {table} with {mode}: {found}")
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong:
        sys.exit(1)
    print(f"{len(QUERIES) * len(TABLES) * 2} results are those of DuckDB {duckdb.__version__}")


if __name__ == "__main__":
    main()
