"""What is measured, as data that each engine makes its own query of, and as SQL for those that read it.

An expression is the name of a column, a number, or a call with expressions or texts as arguments.
"""

from typing import NamedTuple

BATCH = 1024


class Call(NamedTuple):
    name: str
    arguments: tuple


def call(name, *arguments):
    return Call(name, arguments)


class Text(NamedTuple):
    value: str


class Rows(NamedTuple):
    """Rows for which the first expression is less than a number, with columns as they are, and others computed."""

    less: tuple
    columns: list
    computed: dict


class Group(NamedTuple):
    """One row for each key: keys are named expressions, and so are measures, whose outermost call is an aggregate."""

    keys: dict
    measures: dict


class Join(NamedTuple):
    """A join with the table `right`: `inner`, `semi` or `anti`; the columns are those that stay of each side."""

    how: str
    right: str
    on: tuple
    left_columns: list
    right_columns: list
    # Rows of the right side for which v is less.
    less: float | None = None


class Sort(NamedTuple):
    """All columns by keys, each with whether it descends; with a limit only so many rows."""

    keys: list
    limit: int | None = None


class Shuffle(NamedTuple):
    """All rows in a random order."""


class Split(NamedTuple):
    """So many files of equal size, or with rows of one key in one file."""

    parts: int
    key: str | None = None


class Window(NamedTuple):
    """For each row its number `n` and the `running` sum of a column among those with the same key, in an order."""

    key: str
    order: list
    column: str
    columns: list


class Last(NamedTuple):
    """The last rows of each key in an order, so many, with some columns."""

    key: str
    order: list
    rows: int
    columns: list


class Iterate(NamedTuple):
    """All rows, to a consumer in batches."""

    batch: int


class First(NamedTuple):
    """Any rows, so many."""

    rows: int


def operations(plan, columns):
    """The operations on the table of a plan, by name; `columns` are all that the table has."""
    measures = own_measures(plan)
    first = dict(list(measures.items())[:1])
    count = {"n": call("count"), "ids": call("sum", "id")}
    everything = list(columns)
    times = {"least": call("min", "ts"), "greatest": call("max", "ts"), "hours": call("sum", call("hour", "ts"))}
    if plan.shape == "times":
        times |= {"d": call("min", "d1"), "t": call("max", "t2"), "p": call("total", "p1"), "q": call("max", "p0")}
    different = {"ks": call("distinct", "k"), "names": call("distinct", "s")}
    computed = {"upper_s": call("upper", "s"), "part": call("mod", "k", plan.many)} | own_columns_computed(plan)
    return {
        "filter, map, write": Rows(("g", plan.below), everything, computed),
        "group by few integers": Group({"g": "g"}, count | measures),
        "group by few strings": Group({"c": "c"}, count | measures),
        "group by many integers": Group({"many": call("mod", "id", plan.many)}, count | first),
        "group by many strings": Group({"u": "u"}, count | first),
        "group by two keys": Group({"g": "g", "c": "c"}, count | first),
        "sum, min, max of times": Group({"g": "g"}, times),
        "count distinct": Group({"c": "c"}, different),
        "join, small side": Join("inner", "small", ("g", "small_g"), everything, ["label", "weight"]),
        "join, large side": Join("inner", "other", ("id", "other_id"), everything, ["v", "note"]),
        "join, skewed": Join("inner", "keys", ("k", "key"), ["id", "k", "s"], ["w"]),
        "join, semi": Join("semi", "other", ("id", "other_id"), everything, [], plan.kept),
        "join, anti": Join("anti", "other", ("id", "other_id"), everything, [], plan.kept),
        "sort by integer": Sort([("k", False)]),
        "sort by string": Sort([("s", False)]),
        "sort by two keys": Sort([("c", False), ("id", True)]),
        "top k": Sort([("ts", True), ("id", False)], plan.top),
        "shuffle": Shuffle(),
        "repartition by number": Split(plan.parts),
        "repartition by key": Split(plan.parts, "s"),
        "window": Window("s", ["ts", "id"], "g", ["id", "s"]),
        "last of each key": Last("k", ["ts", "id"], 2, ["id", "k", "s"]),
        "small batches": Iterate(BATCH),
        "first rows": First(10),
    }


def own_measures(plan):
    """Aggregates over columns of the shape; the first one is for many groups, of which some have only nulls.

    There it is no sum of what can be null: without values that is null in SQL, and 0 for Polars.
    """
    a, b, c, d = plan.chosen
    return {
        "bytes": {"size": call("sum", call("octets", "payload"))},
        "text": {"size": call("sum", call("chars", "body")), "least": call("min", "body")},
        "words": {"some": call("count", f"w{a}"), "least": call("min", f"w{b}"), "greatest": call("max", f"w{c}")},
        "numbers": {
            "total": call("total", f"d{a:02}"),
            "sum": call("sum", f"n{b:02}"),
            "mean": call("mean", f"d{c:02}"),
            "least": call("min", f"d{d:02}"),
            "greatest": call("max", f"n{a:02}"),
            "mean_n": call("mean", f"n{c:02}"),
        },
        "nested": {"a": call("max", call("first_a", "parts")), "items": call("sum", call("items", "parts"))},
        "times": {
            "total": call("total", "p1"),
            "least": call("min", "d0"),
            "greatest": call("max", "t0"),
            "total_0": call("total", "p0"),
        },
    }[plan.shape]


def own_columns_computed(plan):
    """Columns that are computed of those of the shape."""
    a, b, c, d = plan.chosen
    return {
        "bytes": {"size": call("octets", "payload")},
        "text": {"size": call("chars", "body")},
        "words": {"some": call("otherwise", f"w{a}", Text("none")), "both": call("joined", f"w{b}", f"w{c}")},
        "numbers": {
            "sum": call("plus", f"n{a:02}", f"n{b:02}"),
            "product": call("times", f"d{c:02}", f"d{d:02}"),
        },
        "nested": {"items": call("items", "parts"), "a": call("first_a", "parts")},
        "times": {"hour": call("hour", "t0"), "year": call("year", "d0"), "twice": call("plus", "p0", "p0")},
    }[plan.shape]
