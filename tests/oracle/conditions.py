"""Conditions of comparisons, lists, ranges, patterns and nulls, joined by AND, OR, NOT and CASE, are what DuckDB and SQLite say.

    python -m venv target/oracle && target/oracle/bin/pip install -r tests/oracle/requirements.txt
    target/oracle/bin/python tests/oracle/conditions.py [--tool target/debug/blockyard] [--seed 1] [--queries 1000]

Conditions over a small table with many nulls are drawn, and asked for as values and in WHERE.
"""

import random

from drawn import arguments, compare

TEXTS = ["'a'", "'b'", "'ab'", "''"]
PATTERNS = ["'a%'", "'%b'", "'%'", "'a'", "'_'"]


class Drawn:
    """Conditions from one seed, over columns x and y of integers and s of texts."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def one(self, *choices):
        return self.random.choice(choices)

    def rows(self):
        row = lambda id: (id, self.one(None, 0, 1, 2, 3, 4), self.one(None, 0, 1, 2, 3), self.one(None, "a", "b", "ab", ""))
        return [row(id) for id in range(40)]

    def constant(self):
        return "NULL" if self.random.random() < 0.05 else str(self.random.randint(0, 4))

    def values(self, draw):
        return ", ".join(draw() for _ in range(self.random.randint(1, 4)))

    def number(self, depth):
        kind = self.random.random()
        if depth <= 0 or kind < 0.55:
            return self.one("x", "y", "x", "y", self.constant())
        one, other = self.number(depth - 1), self.number(depth - 1)
        if kind < 0.7:
            return f"({one} {self.one('+', '-', '*')} {other})"
        if kind < 0.9:
            return f"{self.one('coalesce', 'nullif')}({one}, {other})"
        end = f" ELSE {other}" if self.random.random() < 0.6 else ""
        return f"CASE WHEN {self.condition(depth - 1)} THEN {one}{end} END"

    def simple(self, depth):
        kind, column, negated = self.random.random(), self.one("x", "y"), self.one("", "NOT ")
        if kind < 0.4:
            return f"{self.number(depth - 1)} {self.one('=', '<>', '<', '<=', '>', '>=')} {self.number(depth - 1)}"
        if kind < 0.7:
            return f"{column} {negated}IN ({self.values(self.constant)})"
        if kind < 0.8:
            return f"{column} {negated}BETWEEN {self.constant()} AND {self.constant()}"
        if kind < 0.87:
            return f"{self.one('x', 'y', 's')} IS {negated}NULL"
        if kind < 0.94:
            return f"s {negated}IN ({self.values(lambda: self.one(*TEXTS))})"
        return f"s {negated}LIKE {self.one(*PATTERNS)}"

    def condition(self, depth):
        kind = self.random.random()
        if depth <= 0 or kind < 0.3:
            return self.simple(depth)
        if kind < 0.8:
            return f"({self.condition(depth - 1)} {self.one('AND', 'OR')} {self.condition(depth - 1)})"
        if kind < 0.9:
            return f"NOT ({self.condition(depth - 1)})"
        if kind < 0.95:
            return f"({self.condition(depth - 1)}) IS {self.one('', 'NOT ')}{self.one('TRUE', 'FALSE', 'NULL')}"
        branches = [self.condition(depth - 1) for _ in range(3)]
        return "CASE WHEN {} THEN {} ELSE {} END".format(*branches)

    def query(self):
        condition = self.condition(self.random.randint(1, 4))
        if self.random.random() < 0.5:
            return f"SELECT id, CAST(({condition}) AS INT) AS v FROM t"
        return f"SELECT id, 0 AS v FROM t WHERE {condition}"


if __name__ == "__main__":
    args = arguments(__doc__, 1000)
    drawn = Drawn(args.seed)
    compare(args, {"t": (("id", "x", "y", "s"), drawn.rows())}, drawn.query)
