"""Joins of random tables are done in an order that costs little by the rows that there really are.

    python -m venv target/oracle && target/oracle/bin/pip install -r tests/oracle/requirements.txt
    target/oracle/bin/python tests/oracle/join_order.py [--tool target/release/blockyard] [--graphs 100] [--seed 1]

Tables have 20 to 20,000 rows. Each but the first names a row of an earlier one, or the other way round; some are connected once more.
What is named is skewed for half of them: a few rows are named by most. Some columns have nulls, some tables a condition that keeps
1 to 90 % of their rows. The tool counts the rows of the join, and explains it.

DuckDB counts the rows of every connected set of the tables. A join costs the rows of both of its sides and those that it gives; the
cost of an order is that of its joins. The least cost of all orders, of any shape, is compared with the cost of the one that was chosen.
It fails where fewer than `--share` of the orders are within `--factor` of the best, or a count is wrong.

With `--planning`, it says how long a query of nine tables takes to plan.
"""

import argparse
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time

import duckdb

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Joins with more rows say little about the order, and take long to count.
MOST_ROWS = 3_000_000


class Graph:
    """Tables, what connects them, and their conditions."""

    def __init__(self, dice, database, directory):
        self.number = dice.randint(3, 9)
        self.rows = [int(20 * 1000 ** dice.random()) for _ in range(self.number)]
        self.conditions = {}
        self.edges = []
        columns = [["range AS id", "(hash(range, 17) % 1000)::INT AS v"] for _ in self.rows]
        for table in range(1, self.number):
            self.connect(dice, columns, table, dice.randrange(table))
        for _ in range(dice.choice([0, 0, 1, 2])):
            one, other = dice.sample(range(self.number), 2)
            if not any({one, other} == {a, b} for a, _, b, _ in self.edges):
                self.connect(dice, columns, one, other)
        for table, rows in enumerate(self.rows):
            if dice.random() < 0.5:
                self.conditions[table] = int(1000 * dice.choice([0.01, 0.05, 0.2, 0.5, 0.9]))
            database.execute(f"CREATE OR REPLACE TABLE t{table} AS SELECT {', '.join(columns[table])} FROM range({rows})")
            database.execute(f"COPY t{table} TO '{directory}/t{table}.parquet' (FORMAT parquet)")

    def connect(self, dice, columns, one, other):
        """A column of one table that names rows of another."""
        if dice.random() < 0.5:
            one, other = other, one
        name = f"r{len(self.edges)}"
        drawn = f"((hash(range, {dice.randrange(1 << 30)}) % 1000003) / 1000003.0)"
        skewed = f"pow({drawn}, {dice.choice([1, 1, 3, 6])})"
        row = f"floor({skewed} * {self.rows[other]})::BIGINT"
        null = dice.choice([0, 0, 10])
        columns[one].append(f"CASE WHEN hash(range, 5) % 100 < {null} THEN NULL ELSE {row} END AS {name}")
        self.edges.append((one, name, other, "id"))

    def sql(self, tables):
        """The count of the rows of a join."""
        equal = []
        for members in self.classes():
            inside = [f"t{table}.{column}" for table, column in members if table in tables]
            equal += [f"{one} = {other}" for one, other in zip(inside, inside[1:])]
        kept = [f"t{table}.v < {below}" for table, below in self.conditions.items() if table in tables]
        where = " AND ".join(equal + kept)
        return f"SELECT count(*) FROM {', '.join(f't{table}' for table in sorted(tables))}" + (f" WHERE {where}" if where else "")

    def classes(self):
        """Columns that are equal: what names rows of a table, and what they are named by."""
        named = {b: [(b, y)] for _, _, b, y in self.edges}
        for a, x, b, _ in self.edges:
            named[b].append((a, x))
        return list(named.values())

    def neighbours(self, tables):
        classes = [{table for table, _ in members} for members in self.classes()]
        return set().union(*(members - tables for members in classes if members & tables))

    def connected(self):
        """All connected sets of tables, the smaller ones first."""
        level = {frozenset([table]) for table in range(self.number)}
        while level:
            yield from sorted(level, key=sorted)
            level = {tables | {table} for tables in level for table in self.neighbours(tables)}


def join_cost(rows, left, right):
    return rows[left] + rows[right] + rows[left | right]


def best_cost(graph, rows):
    """The least cost of an order."""
    best = {}
    for tables in graph.connected():
        if len(tables) == 1:
            best[tables] = 0
            continue
        costs = []
        for size in range(1, len(tables) // 2 + 1):
            for left in map(frozenset, itertools.combinations(sorted(tables), size)):
                right = tables - left
                if left in best and right in best:
                    costs.append(best[left] + best[right] + join_cost(rows, left, right))
        best[tables] = min(costs)
    return best[frozenset(range(graph.number))]


def joins_of(plan):
    """The two sides of each join of an explained plan, as sets of tables."""
    joins, open_nodes = [], []

    def close(depth):
        while open_nodes and open_nodes[-1][0] >= depth:
            _, is_join, inputs = open_nodes.pop()
            if is_join:
                joins.append(tuple(inputs))
            tables = frozenset().union(*inputs)
            if open_nodes:
                open_nodes[-1][2].append(tables)

    for line in plan.split("\n"):
        node = line.lstrip(" ")
        close(len(line) - len(node))
        inputs = [frozenset([int(re.search(r"/t(\d)\.parquet", node).group(1))])] if node.startswith("DataSourceExec") else []
        open_nodes.append((len(line) - len(node), "JoinExec" in node.split(":")[0], inputs))
    close(0)
    return joins


def run_tool(tool, directory, number, statements):
    views = [f"CREATE VIEW t{table} AS SELECT * FROM read_parquet('{directory}/t{table}.parquet')" for table in range(number)]
    command = [tool, "--threads", "2", "--quiet", "--format", "json", "sql", ";\n".join(views + statements)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip()[-600:])
    return [json.loads(line) for line in done.stdout.strip().split("\n") if line.strip()]


def compare(graph, directory, database, tool):
    """How many times the least cost the chosen order has; `None` where there are too many rows."""
    rows = {}
    for tables in graph.connected():
        rows[tables] = database.execute(graph.sql(tables)).fetchone()[0]
        if rows[tables] > MOST_ROWS:
            return None
    everything = frozenset(range(graph.number))
    sql = graph.sql(everything)
    explained, counted = run_tool(tool, directory, graph.number, [f"EXPLAIN {sql}", sql])
    if list(counted[0].values()) != [rows[everything]]:
        raise RuntimeError(f"{counted} rows, where there are {rows[everything]}: {sql}")
    plan = next(row["plan"] for row in explained if row["plan_type"] == "physical_plan")
    joins = joins_of(plan)
    if len(joins) != graph.number - 1:
        raise RuntimeError(f"{len(joins)} joins of {graph.number} tables:\n{plan}")
    # Both sides of a cross product are connected sets; the product is not.
    product = [sides for sides in joins if sides[0] | sides[1] not in rows]
    if product:
        return float("inf")
    return max(1, sum(join_cost(rows, *sides) for sides in joins)) / max(1, best_cost(graph, rows))


def planning_seconds(dice, tool, database):
    """Seconds to plan a join of nine tables, each connected with two others or more."""
    with tempfile.TemporaryDirectory() as directory:
        graph = Graph(dice, database, directory)
        while graph.number != 9:
            graph = Graph(dice, database, directory)
        explain = f"EXPLAIN {graph.sql(frozenset(range(9)))}"

        def seconds(times):
            started = time.perf_counter()
            run_tool(tool, directory, 9, [explain] * times)
            return time.perf_counter() - started

        seconds(1)
        return (seconds(51) - seconds(1)) / 50


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", default=os.path.join(ROOT, "target", "debug", "blockyard"))
    parser.add_argument("--graphs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--factor", type=float, default=1.2)
    parser.add_argument("--share", type=float, default=0.95)
    parser.add_argument("--planning", action="store_true")
    arguments = parser.parse_args()
    dice, database = random.Random(arguments.seed), duckdb.connect()
    if arguments.planning:
        print(f"a join of nine tables takes {1000 * planning_seconds(dice, arguments.tool, database):.1f} ms to plan")
        return 0
    ratios = []
    while len(ratios) < arguments.graphs:
        with tempfile.TemporaryDirectory() as directory:
            graph = Graph(dice, database, directory)
            ratio = compare(graph, directory, database, arguments.tool)
        if ratio is None:
            continue
        ratios.append(ratio)
        if ratio > arguments.factor:
            print(f"{ratio:.2f} times the best of {graph.number} tables: {graph.sql(range(graph.number))}")
    within = sum(ratio <= arguments.factor for ratio in ratios) / len(ratios)
    ratios.sort()
    print(
        f"{within:.0%} of {len(ratios)} orders cost at most {arguments.factor} times the best one; the median costs "
        f"{ratios[len(ratios) // 2]:.2f}, the worst {ratios[-1]:.2f} times that"
    )
    return 0 if within >= arguments.share else 1


if __name__ == "__main__":
    sys.exit(main())
