"""Read, score with a model in a pool of actors, write: the example `batch_inference` beside Ray Data, in one run.

    python -m venv target/peers && target/peers/bin/pip install -r benches/peers/requirements.txt
    cargo build --release --example batch_inference
    target/peers/bin/python benches/peers/actors.py [--rows 4000000] [--actors 2] [--rounds 3] [--update-docs]

Both read the same Parquet files, score each row by the same perceptron (16 features, 64 hidden units), and write Parquet.
Rounds alternate. Times are of whole pipelines: of Ray without the start of its processes, which is shown beside. The
sums of the scores must agree.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FEATURES, HIDDEN = 16, 64
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGE = os.path.join(ROOT, "docs", "reference", "benchmarks.md")


def make_input(path, rows, files=16):
    """Writes random features, in row groups of 128 Ki rows."""
    os.makedirs(path)
    random = np.random.default_rng(7)
    start = 0
    for number in range(files):
        count = rows * (number + 1) // files - start
        columns = {"id": np.arange(start, start + count)}
        columns |= {f"f{f}": random.standard_normal(count, dtype=np.float32) for f in range(FEATURES)}
        pq.write_table(pa.table(columns), f"{path}/part-{number:04}.parquet", row_group_size=1 << 17)
        start += count


def sum_of_scores(path):
    """Rows and the sum of the scores of what was written."""
    table = pq.read_table(path, columns=["score"])
    return table.num_rows, float(np.sum(table["score"].to_numpy(), dtype=np.float64))


class Model:
    """The perceptron of the example, on whole batches."""

    def __init__(self):
        def weight(i):
            return ((i * 7919 % 2003) / 1001.0 - 1.0) * 0.25

        first = [[weight(h * FEATURES + f) for f in range(FEATURES)] for h in range(HIDDEN)]
        self.first = np.array(first, dtype=np.float32).T
        self.second = np.array([weight(h + 31) for h in range(HIDDEN)], dtype=np.float32)

    def __call__(self, batch):
        features = np.stack([batch[f"f{f}"] for f in range(FEATURES)], axis=1)
        batch["score"] = np.maximum(features @ self.first, 0) @ self.second
        return batch


def run_ray(source, target, actors):
    """One run of Ray Data in this process; prints its times."""
    started = time.perf_counter()
    import ray

    ray.init(num_cpus=os.cpu_count(), logging_level="error", log_to_driver=False, include_dashboard=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    began = time.perf_counter()
    dataset = ray.data.read_parquet(source)
    dataset = dataset.map_batches(Model, concurrency=(1, actors), batch_size=8192)
    dataset.write_parquet(target)
    ended = time.perf_counter()
    print(json.dumps({"pipeline": ended - began, "start": began - started, "version": ray.__version__}))


def run_ours(source, target, actors):
    """One run of the example; its time with the start of the process."""
    program = os.path.join(ROOT, "target", "release", "examples", "batch_inference")
    started = time.perf_counter()
    subprocess.run([program, source, target, str(actors)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--actors", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--update-docs", action="store_true")
    parser.add_argument("--ray", nargs=2, metavar=("SOURCE", "TARGET"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ray:
        return run_ray(*arguments.ray, arguments.actors)

    scratch = tempfile.mkdtemp(prefix="blockyard-peers-")
    source = f"{scratch}/in"
    make_input(source, arguments.rows)
    ours, theirs, starts, sums = [], [], [], []
    try:
        for _ in range(arguments.rounds):
            ours.append(run_ours(source, f"{scratch}/ours", arguments.actors))
            sums.append(sum_of_scores(f"{scratch}/ours"))
            command = [sys.executable, __file__, "--ray", source, f"{scratch}/ray", "--actors", str(arguments.actors)]
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            times = json.loads(printed.strip().splitlines()[-1])
            theirs.append(times["pipeline"])
            starts.append(times["start"])
            sums.append(sum_of_scores(f"{scratch}/ray"))
            shutil.rmtree(f"{scratch}/ray")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    rows = {rows for rows, _ in sums}
    if rows != {arguments.rows} or max(s for _, s in sums) - min(s for _, s in sums) > 1e-4 * arguments.rows:
        sys.exit(f"the results differ: {sums}")

    median, best = statistics.median, min
    lines = [
        "| engine | median s | fastest s | start of processes s | rows per second |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, values, start in [("Blockyard", ours, 0.0), (f"Ray Data {times['version']}", theirs, median(starts))]:
        started = f"{start:.1f}" if start else "in the time"
        lines.append(
            f"| {name} | {median(values):.2f} | {best(values):.2f} | {started} | {arguments.rows / median(values):,.0f} |"
        )
    ratio = median(theirs) / median(ours)
    about = (
        f"{arguments.rows:,} rows of 16 Float32 and an id in 16 Parquet files, pools of 1 to {arguments.actors} actors, "
        f"{os.cpu_count()} CPUs, Python {platform.python_version()}, median of {arguments.rounds} rounds that alternate. "
        f"Ray Data takes {ratio:.1f} times as long, without the start of its processes."
    )
    text = "\n".join([about, "", *lines])
    print(text)
    if arguments.update_docs:
        with open(PAGE) as page:
            before, rest = page.read().split("<!-- actors -->\n", 1)
            after = rest.split("<!-- end -->\n", 1)[1]
        with open(PAGE, "w") as page:
            page.write(f"{before}<!-- actors -->\n{text}\n<!-- end -->\n{after}")


if __name__ == "__main__":
    main()
