"""Subqueries that depend on columns outside of them, in one another and behind LATERAL, give what DuckDB or SQLite gives.

    python -m venv target/oracle && target/oracle/bin/pip install -r tests/oracle/requirements.txt
    target/oracle/bin/python tests/oracle/subqueries.py [--tool target/debug/blockyard] [--seed 1] [--queries 300]

Queries over three small tables with many nulls are drawn: values, EXISTS and IN over joins of all kinds, groups, windows, LIMIT,
set operations and further subqueries. Where DuckDB and SQLite differ either will do: DuckDB refuses some joins, and SQLite takes
columns outside for never padded with nulls by an outer join.
"""

import random

from drawn import arguments, compare

TABLES = {"o": ("id", "k", "m"), "b": ("x", "y"), "c": ("x", "y")}


class Drawn:
    """Queries from one seed. Each relation has columns x and y; `outer` are the columns that may be looked at outside."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.relations = 0

    def value(self):
        return None if self.maybe(0.15) else self.random.randint(0, 5)

    def rows(self):
        o = [(id, self.value(), self.value()) for id in range(8)]
        return {"o": o, "b": [(self.value(), self.value()) for _ in range(12)], "c": [(self.value(), self.value()) for _ in range(9)]}

    def maybe(self, share):
        return self.random.random() < share

    def one(self, *choices):
        return self.random.choice(choices)

    def name(self):
        self.relations += 1
        return f"t{self.relations}"

    def condition(self, columns, outer, depth):
        kind, column = self.random.random(), self.one(*columns)
        seen = outer + columns if self.maybe(0.7) else columns
        if kind < 0.55 or depth <= 0:
            other = self.one(*outer) if outer and self.maybe(0.45) else self.one(*columns, str(self.random.randint(0, 5)))
            return f"{column} {self.one('=', '=', '<', '>=', '<>')} {other}"
        if kind < 0.62:
            return f"{column} IS NULL"
        if kind < 0.70:
            return f"({self.condition(columns, outer, depth - 1)} OR {self.condition(columns, outer, depth - 1)})"
        if kind < 0.80:
            return f"{self.one('', 'NOT ')}EXISTS ({self.select(depth - 1, seen)})"
        if kind < 0.92:
            return f"{column} {self.one('IN', 'NOT IN')} ({self.select(depth - 1, seen, 1)})"
        return f"{column} {self.one('=', '<')} ({self.scalar(depth - 1, outer + columns)})"

    def scalar(self, depth, outer):
        t = self.name()
        functions = ["count(*)", f"count({t}.x)", f"sum({t}.y)", f"max({t}.x)", f"min({t}.y)", f"count(DISTINCT {t}.y)"]
        where = f" WHERE {self.condition([f'{t}.x', f'{t}.y'], outer, depth)}" if self.maybe(0.6) else ""
        having = f" HAVING count(*) > {self.random.randint(0, 2)}" if self.maybe(0.15) else ""
        return f"SELECT {self.one(*functions)} FROM {self.relation(depth, outer, t)}{where}{having}"

    def relation(self, depth, outer, name):
        if depth <= 0 or self.maybe(0.3):
            return f"{self.one('b', 'c')} AS {name}"
        return f"({self.select(depth - 1, outer)}) AS {name}"

    def select(self, depth, outer, width=2):
        kind, t = self.random.random(), self.name()
        columns = [f"{t}.x", f"{t}.y"]
        second = lambda expr: f", {expr} AS y" if width == 2 else ""
        where = lambda: f" WHERE {self.condition(columns, outer, depth)}"
        source = lambda: self.relation(depth, outer, t)
        if kind < 0.35 or depth <= 0:
            expr = columns[1] if self.maybe(0.8) or not outer else self.one(*outer)
            more = f" AND {self.condition(columns, outer, depth)}" if self.maybe(0.3) else ""
            return f"SELECT {columns[0]} AS x{second(expr)} FROM {source()}{where()}{more}"
        if kind < 0.55:
            u, join = self.name(), self.one("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
            on = f"{t}.x = {u}.{self.one('x', 'y')}"
            if self.maybe(0.3) and join != "FULL JOIN":
                on += f" AND {self.condition([f'{t}.y', f'{u}.y'], outer if self.maybe(0.3) else [], 0)}"
            after = f" WHERE {self.condition([f'{t}.x', f'{u}.y'], outer, depth)}" if self.maybe(0.5) else ""
            sides = f"{source()} {join} {self.relation(depth, outer, u)}"
            return f"SELECT {t}.x AS x{second(f'{u}.y')} FROM {sides} ON {on}{after}"
        if kind < 0.68:
            having = " HAVING count(*) > 1" if self.maybe(0.3) else ""
            counted = second(self.one("count(*)", f"sum({t}.y)", f"max({t}.y)"))
            return f"SELECT {t}.x AS x{counted} FROM {source()}{where()} GROUP BY {t}.x{having}"
        if kind < 0.76:
            return f"SELECT max({t}.x) AS x{second('count(*)')} FROM {source()}{where()}"
        if kind < 0.84:
            over = [f"rank() OVER (ORDER BY {t}.x NULLS LAST)", f"count(*) OVER (PARTITION BY {t}.y)"]
            over.append(f"sum({t}.y) OVER (PARTITION BY {t}.x)")
            return f"SELECT {self.one(*over)} AS x{second(columns[1])} FROM {source()}{where()}"
        if kind < 0.92:
            limit = f"LIMIT {self.random.randint(0, 3)}" + (f" OFFSET {self.random.randint(1, 2)}" if self.maybe(0.4) else "")
            order = f"ORDER BY 1 NULLS FIRST, 2 NULLS FIRST {limit}"
            inner = f"SELECT DISTINCT {t}.x AS x, {t}.y AS y FROM {source()}{where()} {order}"
            return f"SELECT z.x{', z.y' if width == 2 else ''} FROM ({inner}) AS z"
        one, other = self.select(depth - 1, outer, width), self.select(depth - 1, outer, width)
        operation = self.one("UNION ALL", "UNION", "EXCEPT", "INTERSECT")
        return f"SELECT * FROM ({one}) AS {t} {operation} SELECT * FROM ({other}) AS {self.name()}"

    def query(self):
        outer, depth, kind = ["o.k", "o.m", "o.id"], self.random.randint(1, 3), self.random.random()
        if kind < 0.35:
            return f"SELECT o.id, ({self.scalar(depth, outer)}) AS v FROM o"
        if kind < 0.6:
            return f"SELECT o.id, 0 AS v FROM o WHERE {self.one('', 'NOT ')}EXISTS ({self.select(depth, outer)})"
        if kind < 0.75:
            membership = f"{self.one('o.k', 'o.m')} {self.one('IN', 'NOT IN')} ({self.select(depth, outer, 1)})"
            return f"SELECT o.id, 0 AS v FROM o WHERE {membership}"
        if kind < 0.85:
            return f"SELECT o.id, CAST({self.condition(['o.k', 'o.m'], [], depth)} AS INT) AS v FROM o"
        join = self.one("CROSS JOIN LATERAL ({}) AS l", "LEFT JOIN LATERAL ({}) AS l ON l.x > 1")
        return f"SELECT o.id, coalesce(l.x, -1) * 100 + coalesce(l.y, -1) AS v FROM o {join.format(self.select(depth, outer))}"


if __name__ == "__main__":
    args = arguments(__doc__, 300)
    drawn = Drawn(args.seed)
    compare(args, {table: (TABLES[table], rows) for table, rows in drawn.rows().items()}, drawn.query)
