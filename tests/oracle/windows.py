"""Drawn windows, groups and outer joins with nulls and constants, in the tool, in DuckDB and in SQLite.

    python -m venv target/oracle && target/oracle/bin/pip install -r tests/oracle/requirements.txt
    target/oracle/bin/python tests/oracle/windows.py [--tool target/debug/blockyard] [--seed 1] [--queries 300]

Rows come in batches of a few, since what is wrong about groups and frames often is so only where a batch ends.
"""

import random

from drawn import arguments, compare

COLUMNS = ["id", "a", "b", "s"]
SETTINGS = ["SET datafusion.execution.batch_size = 3"]


def rows(drawn, count):
    some = lambda values: drawn.choice(values + [None])
    return [(number, some([1, 2, 3]), some([0, 1, 5, 7]), some(["x", "y", "zz"])) for number in range(count)]


class Queries:
    def __init__(self, seed):
        self.drawn = random.Random(seed)

    def one_of(self, *choices):
        return self.drawn.choice(choices)

    def condition(self):
        column = self.one_of("a", "b")
        return self.one_of(f"{column} = {self.one_of(1, 5)}", f"{column} IS NULL", f"{column} <> 1", "id > 3")

    def table(self):
        """Rows with the columns of a table, of which some are constant or equal."""
        return self.one_of(
            "t",
            "u",
            f"(SELECT * FROM t WHERE {self.condition()})",
            f"(SELECT id, {self.one_of('1', '3', 'NULLIF(1, 1)')} AS a, b, s FROM u)",
            "(SELECT id, a, a AS b, 'x' AS s FROM t)",
            "(SELECT a AS id, max(b) AS a, 5 AS b, min(s) AS s FROM u GROUP BY a)",
            "(SELECT * FROM t UNION ALL SELECT id + 40, a, 1, s FROM u)",
        )

    def joined(self):
        kind = self.one_of("LEFT", "RIGHT", "FULL", "INNER")
        on = self.one_of("l.a = r.a", "l.a = r.a AND l.b = r.b", "l.id = r.b", "l.a = r.a AND r.b = 1", "false")
        columns = ", ".join(f"{self.one_of('l', 'r')}.{column} AS {column}" for column in COLUMNS)
        return f"(SELECT {columns} FROM {self.table()} AS l {kind} JOIN {self.table()} AS r ON {on})"

    def source(self):
        return self.one_of(self.table, self.joined)()

    def order(self):
        return f"{self.one_of('ASC', 'DESC')} NULLS {self.one_of('FIRST', 'LAST')}"

    def frame(self):
        before = self.one_of("UNBOUNDED PRECEDING", "2 PRECEDING", "1 PRECEDING", "CURRENT ROW")
        after = self.one_of("CURRENT ROW", "1 FOLLOWING", "UNBOUNDED FOLLOWING")
        return self.one_of(f"BETWEEN {before} AND {after}", "BETWEEN 3 PRECEDING AND 1 PRECEDING")

    def list(self, order):
        # Lists of frames whose beginning moves are refused.
        end = self.one_of("CURRENT ROW", "UNBOUNDED FOLLOWING")
        return f"string_agg(s, '') OVER ({order} ROWS BETWEEN UNBOUNDED PRECEDING AND {end})"

    def window(self):
        partition = self.one_of("", "PARTITION BY a", "PARTITION BY s", "PARTITION BY a, b")
        # All columns, so that rows which are ordered alike are alike.
        all_columns = ", ".join(f"{column} {self.order()}" for column in self.drawn.sample(COLUMNS, len(COLUMNS)))
        place = self.one_of("row_number()", "count(*)", "lag(b)", "lead(s, 2)", "lag(b, 3)", "first_value(s)")
        total = self.one_of("sum(b)", "count(a)", "max(s)", "min(b)", "count(*)")
        rank = self.one_of("rank()", "dense_rank()", "sum(id)", "count(*)", "max(s)")
        return self.one_of(
            f"{place} OVER ({partition} ORDER BY {all_columns})",
            f"{total} OVER ({partition} ORDER BY {all_columns} ROWS {self.frame()})",
            self.list(f"{partition} ORDER BY {all_columns}"),
            f"{rank} OVER ({partition} ORDER BY b {self.order()})",
            f"{self.one_of('sum(id)', 'count(*)', 'min(s)')} OVER ({partition} ORDER BY b {self.order()} RANGE {self.frame()})",
        )

    def aggregate(self):
        return self.one_of(
            "count(*)",
            "count(b)",
            "sum(b)",
            "max(s)",
            "count(DISTINCT a)",
            "count(DISTINCT a) + 10 * count(DISTINCT b) + 100 * count(DISTINCT s)",
            "sum(DISTINCT b) + count(*)",
            "string_agg(DISTINCT s, '' ORDER BY s DESC)",
            "count(*) FILTER (WHERE a = 1)",
        )

    def groups(self):
        sets = self.one_of("ROLLUP (a, b)", "CUBE (b, s)", "GROUPING SETS ((a, b), (b))", "GROUPING SETS ((a), (), (a, s))")
        return self.one_of("", "GROUP BY a", "GROUP BY b, s", "GROUP BY a, b", f"GROUP BY {sets}")

    def draw(self):
        source = f"FROM {self.source()} AS q"
        order = f"ORDER BY v {self.order()}, id {self.order()} LIMIT {self.drawn.randrange(1, 9)}"
        inner = self.one_of(
            f"SELECT id, {self.window()} AS v {source}",
            # No two rows are alike, of which one would have the one value and the other the other.
            f"SELECT id, v FROM (SELECT id, {self.window()} AS v, {self.window()} AS w FROM {self.table()} AS q) AS y "
            "WHERE w IS NOT NULL",
            f"SELECT count(*) AS id, {self.aggregate()} AS v {source} {self.groups()}",
            f"SELECT DISTINCT a AS id, {self.one_of('b', 's', 'b IS NULL')} AS v {source}",
            f"SELECT a AS id, b AS v {source} {order.replace('id', 'a').replace('v', 'b')}",
        )
        return self.one_of(
            inner,
            f"SELECT id, v FROM ({inner}) AS z {self.one_of('', 'WHERE v IS NOT NULL', 'WHERE 1 = 2', order)}",
            f"SELECT count(*) AS id, max(v) AS v FROM ({inner}) AS z",
        )


def main():
    args = arguments(__doc__, 300)
    queries = Queries(args.seed)
    tables = {name: (COLUMNS, rows(queries.drawn, 20)) for name in ("t", "u")}
    compare(args, tables, queries.draw, SETTINGS)


if __name__ == "__main__":
    main()
