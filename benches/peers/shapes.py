"""Data of several shapes, and twenty-four operations on each, beside other engines of one machine, in one run.

    python -m venv target/peers && target/peers/bin/pip install -r benches/peers/requirements.txt
    cargo build --release
    target/peers/bin/python benches/peers/shapes.py [--seed 1] [--rows 5000000] [--limit 1GiB] [--shapes ..] \\
        [--operations ..] [--engines ..] [--rounds 2] [--layouts all] [--quick] [--update-docs]
    target/peers/bin/python benches/peers/shapes.py --profile words:window

Nobody can tune an engine to this data: a seed, by default that of the clock, draws how many rows and files there are,
how the files are laid out, how many different keys there are and how skewed they are, which columns are aggregated, and
what filters leave. The same seed gives the same data and operations again.

Every run is a process of its own; times are of the whole process, memory is its peak resident set as the kernel counts
it. Of several rounds, in which engines alternate, the fastest counts. A peer tells when its modules are loaded, so that
a ratio is also known without that. All write Parquet with Snappy. What is written is read by DuckDB: numbers of rows
and sums of hashes must be the same for all engines; what is sorted must be in order, what is shuffled must be mixed,
and keys of a repartition must be together. Where engines differ, those are wrong that are fewer, or, of two, the one
that is not DuckDB.
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

# The sources stay as they are.
sys.dont_write_bytecode = True

# These need little memory: a process counts as its own peak what the one that starts it has had.
from shapes import engines, plan, profile, report
from shapes.check import difference
from shapes.operations import Iterate, operations

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
QUICK = 50_000


def operations_of(a_plan):
    return operations(a_plan, plan.COMMON + plan.own_columns(a_plan))


def child(what, job):
    """The command of a process that does a part of the work."""
    return [sys.executable, os.path.abspath(__file__), "--child", what, json.dumps(job)]


def run_child(what, job):
    """Does a part of the work, in this process."""
    a_plan = plan.Plan(**{name: tuple(v) if isinstance(v, list) else v for name, v in job["plan"].items()})
    operation = operations_of(a_plan).get(job.get("operation"))
    if what == "make":
        from shapes.data import make

        make(a_plan, job["source"])
    elif what == "run":
        engines.run(job, operation)
    else:
        from shapes.check import check

        check(operation, a_plan, plan.COMMON + plan.own_columns(a_plan), job, job["said"])


def measure(job, operation, timeout):
    """Seconds, MiB and what was said by one process, or how it went wrong."""
    for path in (job["target"], job["target"] + ".tmp"):
        shutil.rmtree(path, ignore_errors=True)
    is_tool = job["engine"] == "blockyard" and not isinstance(operation, Iterate)
    command = engines.tool_command(operation, job) if is_tool else child("run", job)
    # What the run before has written is not written to the disk during this one.
    os.sync()
    with open(job["output"], "wb") as output, open(job["output"] + ".errors", "wb") as errors:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=errors, start_new_session=True)
        # With what it has started itself.
        timer = threading.Timer(timeout, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            timer.cancel()
        seconds = time.perf_counter() - started
    said = {}
    with open(job["output"], "rb") as output:
        for line in [] if is_tool else output.read().decode(errors="replace").splitlines():
            said |= json.loads(line) if line.startswith("{") else {}
    if said.get("has_none"):
        return {"has none": True}
    if status:
        with open(job["output"] + ".errors", "rb") as errors:
            said = message(errors.read().decode(errors="replace"))
        return {"failed": f"not within {timeout} s" if seconds >= timeout else said}
    start = said["ready"] - started if "ready" in said else 0
    return {"seconds": seconds, "start": start, "mib": said.get("mib", usage.ru_maxrss / 1024), "said": said}


def message(errors):
    """The line of an error message that says most: where our tool or Python begins to say it, or else the last one."""
    lines = errors.strip().splitlines() or ["killed"]
    begin = [line for line in lines if re.match(r"error: |[\w.]*(Error|Exception|Panic)\w*: ", line)]
    return (begin or lines)[-1].strip()[:200]


def result_of(job, got):
    """Figures of a result, or how its order is wrong."""
    done = subprocess.run(child("check", job | {"said": got["said"]}), capture_output=True, text=True)
    if done.returncode:
        return {"failed": f"the check: {message(done.stderr)}"}
    looked = json.loads(done.stdout.splitlines()[-1])
    return {"wrong": looked["wrong"]} if looked["wrong"] else {"figures": looked["figures"], "files": looked["files"]}


def compare(got):
    """Marks engines as wrong whose figures are not those of most; of two different ones, DuckDB's are expected."""
    good = {engine: one for engine, one in got.items() if "figures" in one}

    def agreeing(engine):
        return sum(difference(one["figures"], good[engine]["figures"]) is None for one in good.values())

    expected = max(good, key=lambda engine: (agreeing(engine), engine == "duckdb"), default=None)
    for engine, one in good.items():
        how = difference(one["figures"], good[expected]["figures"])
        if how:
            got[engine] = {"wrong": f"{how}, as {expected} has it"}


def measure_all(job, operation, arguments):
    """What the engines have made of an operation, each the fastest of its rounds."""
    best, seen = {}, {}
    for engine in arguments.engines * arguments.rounds:
        if "seconds" not in best.get(engine, {"seconds": 0}):
            continue
        job["engine"] = engine
        got = measure(job, operation, arguments.timeout)
        if "seconds" in got and (engine not in best or engine == "blockyard"):
            # Of peers the first result is looked at, of ours each.
            got |= result_of(job, got)
            how = difference(got["figures"], seen[engine]) if engine in seen and "figures" in got else None
            seen.setdefault(engine, got.get("figures", {}))
            got |= {"wrong": f"{how}, in another round"} if how else {}
        if "wrong" in got or "failed" in got:
            got.pop("seconds", None)
        if engine not in best or "seconds" not in got:
            best[engine] = got
        elif got["seconds"] < best[engine]["seconds"]:
            best[engine] |= {name: got[name] for name in ("seconds", "start", "mib")}
    compare(best)
    return best


def run_all(arguments, scratch):
    """Measures all operations on all tables; each table is there as long as it is needed."""
    rows = []
    for shape in arguments.shapes:
        for a_plan in plan.layouts(shape, arguments.seed, arguments.rows, arguments.layouts):
            job = job_of(a_plan, scratch, arguments)
            print(f"{shape}: {a_plan.rows:,} rows in {len(a_plan.files)} files, {a_plan.layout}", flush=True)
            subprocess.run(child("make", job), check=True)
            for name, operation in operations_of(a_plan).items():
                if name not in arguments.operations:
                    continue
                row = report.Row(a_plan, name, measure_all(job | {"operation": name}, operation, arguments))
                print(row.line(arguments.engines), flush=True)
                for engine, got in row.got.items():
                    if "failed" in got or "wrong" in got:
                        print(f"  {engine}: {report.wording(got)}: {got.get('failed') or got['wrong']}", flush=True)
                rows.append(row)
            shutil.rmtree(scratch)
            os.makedirs(scratch)
    return rows


def job_of(a_plan, scratch, arguments):
    """What processes have to know; all of it is text for them."""
    return {
        "plan": dataclasses.asdict(a_plan),
        "source": f"{scratch}/in",
        "target": f"{scratch}/out",
        "output": f"{scratch}/output",
        "threads": arguments.threads,
        "limit": arguments.limit,
        "tool": arguments.tool,
    }


def profile_one(arguments, scratch):
    """Profiles our tool in one operation, and says what it ran."""
    profile.need_perf()
    shape, _, name = arguments.profile.partition(":")
    if shape not in plan.SHAPES:
        sys.exit(f"no shape is called '{shape}': {', '.join(plan.SHAPES)}")
    a_plan = plan.layouts(shape, arguments.seed, arguments.rows, arguments.layouts)[0]
    operation = operations_of(a_plan).get(name)
    if operation is None:
        sys.exit(f"no operation is called '{name}': {'; '.join(operations_of(a_plan))}")
    job = job_of(a_plan, scratch, arguments)
    print(f"{shape}: {a_plan.rows:,} rows in {len(a_plan.files)} files, {a_plan.layout}")
    subprocess.run(child("make", job), check=True)
    command = engines.tool_command(operation, job)
    print(command[-1])
    profile.profile(command, scratch)


def is_there(engine, tool):
    return os.path.exists(tool) if engine == "blockyard" else importlib.util.find_spec(engine) is not None


def parsed():
    parser = argparse.ArgumentParser()
    names = list(operations_of(plan.draw("bytes", 0, 1)))
    parser.add_argument("--seed", type=int, help="what all is drawn from; that of the clock if not said")
    parser.add_argument("--rows", type=int, default=5_000_000, help="a tenth more or less, by the seed")
    parser.add_argument("--shapes", nargs="*", default=plan.SHAPES, choices=plan.SHAPES)
    parser.add_argument("--operations", nargs="*", default=names, metavar="NAME", help=f"of: {'; '.join(names)}")
    parser.add_argument("--engines", nargs="*", default=engines.ENGINES, choices=engines.ENGINES)
    parser.add_argument("--layouts", choices=["one", "all"], default="one", help="of each shape: one by the seed")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", default="", help="of memory, like 1GiB, for engines which take one")
    parser.add_argument("--timeout", type=int, default=600, help="seconds after which a process is ended")
    parser.add_argument("--tool", default=os.path.join(ROOT, "target", "release", "blockyard"))
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} rows and one round: whether all works")
    parser.add_argument("--profile", metavar="SHAPE:OPERATION", help="where our tool spends its time, by perf")
    parser.add_argument("--update-docs", action="store_true")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    unknown = [name for name in arguments.operations if name not in names]
    if unknown:
        parser.error(f"no operation is called '{unknown[0]}': {'; '.join(names)}")
    arguments.tool = os.path.abspath(arguments.tool)
    if arguments.seed is None:
        arguments.seed = time.time_ns() // 1_000_000 % 1_000_000_000
    if arguments.quick:
        arguments.rows, arguments.rounds = QUICK, 1
    return arguments


def main():
    arguments = parsed()
    if arguments.child:
        what, job = arguments.child
        return run_child(what, json.loads(job))
    print(f"seed {arguments.seed}", flush=True)
    scratch = tempfile.mkdtemp(prefix="blockyard-shapes-")
    try:
        if arguments.profile:
            return profile_one(arguments, scratch)
        for engine in list(arguments.engines):
            if not is_there(engine, arguments.tool):
                print(f"{engine} is left out: it is not there")
                arguments.engines = [other for other in arguments.engines if other != engine]
        rows = run_all(arguments, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    from importlib.metadata import version

    limit = f"a limit of {arguments.limit} where the engine takes one" if arguments.limit else "no limit"
    rounds = f"the fastest of {arguments.rounds} rounds" if arguments.rounds > 1 else "one round"
    versions = ", ".join(f"{name} {version(name)}" for name in arguments.engines if name != "blockyard")
    about = f"Seed {arguments.seed}, {arguments.threads} threads, {limit}, {rounds}. {versions}."
    lines = report.table(rows, arguments.engines, about)
    print("\n" + "\n".join(lines))
    if arguments.update_docs:
        report.update(ROOT, arguments.limit, lines)
    return 1 if any("seconds" not in row.ours for row in rows if row.ours) else 0


if __name__ == "__main__":
    sys.exit(main())
