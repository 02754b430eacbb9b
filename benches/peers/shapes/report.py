"""The table of what was measured, the worst rows first, and where it goes in the docs."""

import math
import os

PAGE = os.path.join("docs", "reference", "benchmarks.md")


class Row:
    """What all engines have made of one operation on one table."""

    def __init__(self, plan, operation, got):
        self.plan, self.operation, self.got = plan, operation, got

    @property
    def ours(self):
        return self.got.get("blockyard", {})

    def ratio(self, without_start=False):
        """Seconds of the best peer for one of ours; of a peer's, those before its modules are loaded can be left out.

        Not of ours: where it is read by Python, it runs while that loads its modules.
        """
        good = [got for engine, got in self.got.items() if engine != "blockyard" and "seconds" in got]
        best = min((got["seconds"] - (got["start"] if without_start else 0) for got in good), default=None)
        if "seconds" not in self.ours or best is None:
            return None
        return max(best, 1e-3) / self.ours["seconds"]

    def place(self):
        """The worst first: what we failed at, then the ratios, then what no peer has done."""
        if "seconds" not in self.ours:
            return (0, 0)
        return (1, self.ratio()) if self.ratio() is not None else (2, 0)

    def table(self, with_layout):
        """What the table is called."""
        return self.plan.shape + (f", {self.plan.name}" if with_layout else "")

    def line(self, engines, with_layout=False):
        ratio = self.ratio()
        cells = [self.table(with_layout), self.operation]
        cells.append("-" if ratio is None else f"{ratio:.2f}")
        for engine in engines:
            got = self.got.get(engine, {})
            cells += [f"{got['seconds']:.2f}", f"{got['mib']:,.0f}"] if "seconds" in got else [wording(got), ""]
        return f"| {' | '.join(cells)} |"


def wording(got):
    return "wrong" if "wrong" in got else "failed" if "failed" in got else "has none" if "has none" in got else "-"


def mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def table(rows, engines, about):
    """Lines of Markdown: about the run, a summary, the tables that were made, all rows, and what went wrong."""
    with_layout = len({(row.plan.shape, row.plan.name) for row in rows}) > len({row.plan.shape for row in rows})
    ratios = [row.ratio() for row in rows if row.ratio() is not None]
    lines = [about]
    if ratios:
        ready = [row.ratio(without_start=True) for row in rows if row.ratio() is not None]
        lines += [
            "",
            f"The best peer takes {mean(ratios):.2f} times as long in the geometric mean of {len(ratios)} rows; "
            f"{sum(ratio < 1 for ratio in ratios)} are below 1. Without the time in which the interpreters of the "
            "peers start and load their modules "
            f"it is {mean(ready):.2f}, and {sum(ratio < 1 for ratio in ready)} are below 1.",
        ]
    lines.append("")
    for plan in dict.fromkeys(row.plan for row in rows):
        lines.append(f"- `{plan.shape}`: {plan.rows:,} rows in {len(plan.files)} files, {plan.layout}")
    lines += [
        "",
        "| shape | operation | ratio | " + " | ".join(f"{engine} s | MiB" for engine in engines) + " |",
        "|---|---|---:|" + "---:|---:|" * len(engines),
        *(row.line(engines, with_layout) for row in sorted(rows, key=Row.place)),
    ]
    wrong = []
    for row in rows:
        for engine, got in row.got.items():
            if "failed" in got or "wrong" in got:
                message = (got.get("failed") or got["wrong"]).replace("|", "/").replace("`", "'")
                wrong.append(f"- {engine}, {row.table(with_layout)}, {row.operation}: {wording(got)}: `{message}`")
    return lines + (["", "What went wrong:", "", *wrong] if wrong else [])


def update(root, limit, lines):
    """Writes the lines between the markers of the page."""
    mark = f"<!-- shapes {limit or 'unlimited'} -->\n"
    path = os.path.join(root, PAGE)
    with open(path) as page:
        before, rest = page.read().split(mark, 1)
        after = rest.split("<!-- end -->\n", 1)[1]
    with open(path, "w") as page:
        page.write(before + mark + "\n".join(lines) + f"\n<!-- end -->\n{after}")
