"""What a seed draws: how many rows and files there are, their layout, their keys, and the numbers in the operations."""

import dataclasses
import itertools
import random

SHAPES = ["bytes", "text", "words", "numbers", "nested", "times"]
# Columns that every shape has, beside its own.
COMMON = ["id", "k", "g", "s", "c", "u", "ts"]
# Whether row groups are large, the codec, and whether there are dictionaries.
LAYOUTS = list(itertools.product([True, False], ["snappy", "zstd"], [True, False]))


@dataclasses.dataclass(frozen=True)
class Plan:
    """A table of one shape in one layout, and what the operations on it need to know."""

    shape: str
    seed: int
    rows: int
    # Rows of each file.
    files: tuple
    # Rows of a row group, the codec, and whether there are dictionaries.
    row_group: int
    codec: str
    dictionary: bool
    # The version of data pages, and whether decimals are written as integers.
    pages: str
    short_decimals: bool
    # How many different values the columns g, c, s and u have at most.
    groups: int
    categories: int
    names: int
    users: int
    # The exponent of the Zipf distribution of k, and what its ranks are multiplied by.
    exponent: float
    step: int
    # Whether times rise with the ids, as those of events do.
    in_time: bool
    # Own columns of the shape which the operations use: places in its list of columns.
    chosen: tuple
    # Rows of g below it pass the filter.
    below: int
    # What ids are divided by to have many groups.
    many: int
    # The share of ids that are in the other table, and of those that a semi join leaves.
    share: float
    kept: float
    # Files of a repartition.
    parts: int
    # Rows of the first ones in an order.
    top: int

    @property
    def layout(self):
        words = "with" if self.dictionary else "without"
        return f"row groups of {self.row_group:,}, {self.codec.capitalize()}, {words} dictionary"

    @property
    def name(self):
        """The name of the layout, as options and directories have it."""
        groups = "large" if self.row_group > 100_000 else "small"
        return f"{groups}-{self.codec}-{'dictionary' if self.dictionary else 'plain'}"


def draw(shape, seed, rows, layout=None):
    """The plan of a shape for a seed; with a layout by its number, or one by the seed."""
    r = random.Random(f"{seed}/{shape}")
    rows = round(rows * r.uniform(0.9, 1.1))
    sizes = [r.uniform(0.5, 1.5) for _ in range(r.randint(6, 32))]
    ends = [round(rows * sum(sizes[: i + 1]) / sum(sizes)) for i in range(len(sizes))]
    files = tuple(end - start for start, end in zip([0, *ends], ends))
    drawn = r.randrange(len(LAYOUTS))
    is_large, codec, dictionary = LAYOUTS[drawn if layout is None else layout]
    large, small = r.randint(500_000, 2_000_000), r.randint(5_000, 20_000)
    return Plan(
        shape=shape,
        seed=seed,
        rows=rows,
        files=files,
        row_group=large if is_large else small,
        codec=codec,
        dictionary=dictionary,
        pages=r.choice(["1.0", "2.0"]),
        short_decimals=r.random() < 0.5,
        groups=r.randint(800, 1200),
        categories=r.randint(5, 150),
        # Each has several rows, also where there are few.
        names=min(r.randint(40_000, 60_000), rows // 10),
        users=round(rows * r.uniform(0.2, 0.5)),
        exponent=r.uniform(1.1, 1.5),
        step=r.randrange(1, 1_000_000, 2),
        in_time=r.random() < 0.5,
        chosen=tuple(r.sample(range(8), 4)),
        below=r.randint(150, 700),
        many=round(rows * r.uniform(0.2, 0.6)),
        share=r.uniform(0.3, 0.8),
        kept=r.uniform(0.2, 0.8),
        parts=r.randint(12, 72),
        top=r.randint(10, 2000),
    )


def layouts(shape, seed, rows, which):
    """The plans of a shape: of the one layout that the seed draws, or of all."""
    if which == "one":
        return [draw(shape, seed, rows)]
    return [draw(shape, seed, rows, number) for number in range(len(LAYOUTS))]


def own_columns(plan):
    """The columns that only this shape has."""
    return {
        "bytes": ["payload"],
        "text": ["body"],
        "words": [f"w{i}" for i in range(10)],
        "numbers": [f"{kind}{i:02}" for i in range(25) for kind in "nd"],
        "nested": ["parts"],
        "times": ["t0", "t1", "t2", "d0", "d1", "p0", "p1"],
    }[plan.shape]
