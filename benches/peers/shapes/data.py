"""Makes the tables of a plan as Parquet files: the table itself, and those that it is joined with."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from shapes.plan import COMMON, own_columns

LETTERS = "eeeeeeaaaaiiioooutttnnnssrrhhlldcmfpgwybvkxjqzäöéø"
YEAR = 365 * 24 * 3600 * 10**6


def make(plan, directory):
    """Writes `t/`, and beside it `small/` with most values of g, `other/` with some ids, `keys/` with values of k."""
    random = np.random.default_rng([plan.seed, sum(plan.shape.encode())])
    shape = Shape(plan, random)
    keys, start = [], 0
    order = list(random.permutation(COMMON + own_columns(plan)))
    for number, count in enumerate(plan.files):
        columns = shape.columns(start, count)
        write(plan, f"{directory}/t", number, pa.table({name: columns[name] for name in order}))
        keys.append(np.unique(columns["k"]))
        start += count

    ids = random.permutation(plan.rows)[: round(plan.rows * plan.share)].astype(np.int64)
    other = {"other_id": ids, "v": random.random(len(ids)), "note": shape.some_words(len(ids))}
    half = len(ids) // 2
    for number, part in enumerate([slice(0, half), slice(half, len(ids))]):
        write(plan, f"{directory}/other", number, pa.table({name: column[part] for name, column in other.items()}))

    g = random.permutation(plan.groups)[: plan.groups * 9 // 10].astype(np.int32)
    small = {"small_g": g, "label": shape.some_words(len(g)), "weight": random.random(len(g))}
    write(plan, f"{directory}/small", 0, pa.table(small))

    # Most values of k have a row, and the most frequent ones two.
    keys = np.unique(np.concatenate(keys))
    keys = keys[(random.random(len(keys)) < 0.8) | (keys <= 5 * plan.step)]
    keys = random.permutation(np.concatenate([keys, np.arange(1, 4) * plan.step]))
    write(plan, f"{directory}/keys", 0, pa.table({"key": keys, "w": random.integers(0, 1000, len(keys))}))


def write(plan, directory, number, table):
    os.makedirs(directory, exist_ok=True)
    pq.write_table(
        table,
        f"{directory}/part-{number:04}.parquet",
        row_group_size=plan.row_group,
        compression=plan.codec,
        use_dictionary=plan.dictionary,
        data_page_version=plan.pages,
        store_decimal_as_integer=plan.short_decimals,
    )


def strings(words, places):
    """The words at these places, as a column of strings."""
    return pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), words).cast(pa.string())


def gathered(kind, pool, starts, lengths):
    """An array whose values are pieces of the bytes of a pool."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(pool[places])]
    return pa.Array.from_buffers(kind, len(lengths), buffers)


def decimals(values, kind, nulls):
    """Decimals of 128 bits of integers that fit 64."""
    halves = np.empty((len(values), 2), np.int64)
    halves[:, 0], halves[:, 1] = values, values >> 63
    numbers = pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(halves)])
    return pa.compute.if_else(pa.array(nulls), pa.scalar(None, kind), numbers)


class Shape:
    """Makes the columns of one file after the other."""

    def __init__(self, plan, random):
        self.plan, self.random = plan, random
        letters = np.array(list(LETTERS))
        words = ["".join(random.choice(letters, random.integers(2, 12))) for _ in range(20_000)]
        self.vocabulary = pa.array(words[:5000])
        plain = [word.encode("ascii", "ignore").decode() for word in words]
        self.names = pa.array([f"{plain[i % 20_000]}-{i:05}" for i in range(plan.names)])
        self.categories = pa.array([f"{word}{i}" for i, word in enumerate(plain[: plan.categories])])
        self.ids = random.integers(0, 1 << 40)
        self.start_of_time = 1_500_000_000 * 10**6 + int(random.integers(0, YEAR))
        if plan.shape == "text":
            text = " ".join(words[i % 20_000] for i in random.zipf(1.2, 400_000))
            self.pool = np.frombuffer(text.encode(), np.uint8)
            # Where each of its characters begins.
            self.characters = np.flatnonzero((self.pool & 0xC0) != 0x80)
        self.ranges = random.permutation([10, 100, 1000, 50_000, 10**6] * 5)
        self.values = [int(n) for n in random.permutation([3, 5, 12, 30, 80, 200, 500, 1000, 2000, 3000])]

    def some_words(self, count):
        return strings(self.vocabulary, self.random.integers(0, len(self.vocabulary), count))

    def columns(self, start, count):
        plan, random = self.plan, self.random
        # The greatest ones come as smaller ones, so that products fit.
        ranks = (random.zipf(plan.exponent, count) - 1) % (1 << 30) + 1
        users = random.integers(0, plan.users, count) * 2_654_435_761 % (1 << 40)
        moments = np.sort(random.integers(0, YEAR // len(plan.files), count)) + start * (YEAR // plan.rows)
        if not plan.in_time:
            moments = random.integers(0, YEAR, count)
        # Few names have many of the rows.
        names = (random.random(count) ** 2 * plan.names).astype(np.int32)
        common = {
            "id": random.permutation(count).astype(np.int64) + start,
            "k": (ranks * plan.step).astype(np.int64),
            "g": random.integers(0, plan.groups, count).astype(np.int32),
            "s": strings(self.names, names),
            "c": strings(self.categories, (random.random(count) ** 3 * plan.categories).astype(np.int32)),
            "u": pa.compute.binary_join_element_wise("user", pa.array(users).cast(pa.string()), "-"),
            "ts": pa.array(moments + self.start_of_time, pa.timestamp("us")),
        }
        return common | getattr(self, plan.shape)(count)

    def bytes(self, count):
        lengths = self.random.integers(60, 141, count)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(self.random.bytes(int(offsets[-1])))]
        return {"payload": pa.Array.from_buffers(pa.binary(), count, buffers)}

    def text(self, count):
        pieces = []
        for size in np.diff([*range(0, count, 1 << 16), count]):
            first = self.random.integers(0, len(self.characters) - 111, size)
            last = first + self.random.integers(90, 111, size)
            begin, end = self.characters[first], self.characters[last]
            pieces.append(gathered(pa.string(), self.pool, begin, end - begin))
        return {"body": pa.concat_arrays(pieces)}

    def words(self, count):
        random, columns = self.random, {}
        for i, values in enumerate(self.values):
            # The first ones come more often.
            places = (random.random(count) ** 2 * values).astype(np.int32)
            nulls = random.random(count) < 0.1
            words = pa.DictionaryArray.from_arrays(pa.array(places, mask=nulls), self.vocabulary.slice(i * 100, values))
            columns[f"w{i}"] = words.cast(pa.string())
        return columns

    def numbers(self, count):
        random, columns = self.random, {}
        for i in range(25):
            values = random.integers(-self.ranges[i] // 10, self.ranges[i], count)
            columns[f"n{i:02}"] = values.astype([np.int32, np.int64][i % 2])
            reals = [random.standard_normal, random.random, random.standard_exponential][i % 3](count)
            columns[f"d{i:02}"] = np.round(reals * 1000, 2) if i % 5 == 0 else reals
        return columns

    def nested(self, count):
        random = self.random
        lengths = random.integers(0, 8, count)
        total = int(lengths.sum())
        fields = [pa.array(random.integers(0, 10**6, total)), pa.array(random.random(total)), self.some_words(total)]
        items = pa.StructArray.from_arrays(fields, ["a", "b", "c"])
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        # A list that is null has no items.
        nulls = pa.array((lengths == 0) & (random.random(count) < 0.3))
        return {"parts": pa.ListArray.from_arrays(offsets, items, mask=nulls)}

    def times(self, count):
        random = self.random

        def nulls():
            return random.random(count) < 0.05

        moments = [random.integers(0, 20 * YEAR, count) for _ in range(3)]
        days = [random.integers(0, 20_000, count).astype(np.int32) for _ in range(2)]
        return {
            "t0": pa.array(moments[0], pa.timestamp("us"), mask=nulls()),
            "t1": pa.array(moments[1] // 1000, pa.timestamp("ms")),
            "t2": pa.array(moments[2], pa.timestamp("us", "UTC")),
            "d0": pa.array(days[0], pa.date32()),
            "d1": pa.array(days[1], pa.date32(), mask=nulls()),
            "p0": decimals(random.integers(-(10**6), 10**8, count), pa.decimal128(12, 2), nulls()),
            "p1": decimals(random.integers(0, 10**12, count), pa.decimal128(18, 6), np.zeros(count, bool)),
        }
