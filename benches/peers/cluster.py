"""Joins, groups, shuffles, sorts, windows, with two executors of one thread beside one process with two threads.

    cargo build --release
    python3 benches/peers/cluster.py [--rows 20000000] [--rounds 3] [--memory 1GiB] [--tool target/release/blockyard]

Two tables of Parquet files with a text of about 100 characters are made by the tool. Each query is a process of its own,
in alternating rounds; what counts is the median of its time, with the start of the process. The executors run all the
time. Both use the same two cores, so that 1.0 means that the exchange costs nothing. Memory is the peak resident set of
each process, as the kernel counts it.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

TEXT = "md5(CAST(id AS VARCHAR)) || md5(CAST(id * 7 AS VARCHAR)) || md5(CAST(id * 13 AS VARCHAR))"
TABLES = {
    "large": f"SELECT id, (id * 7919) % 1000003 AS k, id % 97 AS g, {TEXT} AS t FROM range(ROWS, override_num_blocks => 24)",
    "other": f"SELECT (id * 31) % ROWS AS id, id % 1009 AS k, {TEXT} AS u FROM range(HALF, override_num_blocks => 12)",
}
QUERIES = {
    "read and group, few groups": "SELECT g, count(*), max(t) FROM 'large' GROUP BY g",
    "group by 1,000,003 keys": "SELECT count(*), sum(n) FROM (SELECT k, count(*) AS n, max(t) AS t FROM 'large' GROUP BY k)",
    "join of two large sides": "SELECT count(*), max(t), max(u) FROM 'large' a JOIN 'other' b ON a.id = b.id",
    "join and group by keys": "SELECT count(*), max(n) FROM (SELECT b.k, count(*) AS n, min(t) AS t FROM 'large' a JOIN "
                              "'other' b ON a.id = b.id GROUP BY b.k)",
    "semi join": "SELECT count(*), max(t) FROM 'large' a WHERE EXISTS (SELECT 1 FROM 'other' b WHERE b.id = a.id)",
    "windows by 1,000,003 keys": "SELECT count(*), max(s), max(t) FROM (SELECT t, sum(id) OVER (PARTITION BY k ORDER BY id) AS s "
                                 "FROM 'large')",
    "sort by two keys": "SELECT count(*), max(t) FROM (SELECT * FROM 'large' ORDER BY g, k OFFSET 1)",
    "shuffle to files": "COPY (SELECT * FROM random_shuffle('large', seed => 7)) TO 'out' STORED AS PARQUET OPTIONS (mode 'overwrite')",
    "sort by two keys to files": "COPY (SELECT * FROM 'large' ORDER BY g, k) TO 'out' STORED AS PARQUET OPTIONS (mode 'overwrite')",
    "repartition by key to files": "COPY (SELECT * FROM repartition('large', 64, keys => ['k'])) TO 'out' STORED AS PARQUET "
                                   "OPTIONS (mode 'overwrite')",
}


def peak(pid):
    with open(f"/proc/{pid}/status") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) >> 10


class Executor:
    def __init__(self, tool, directory, number, memory):
        self.address = f"unix:{directory}/{number}.sock"
        command = [tool, "cluster", "executor", "--listen", self.address, "--threads", "1", "--memory", memory]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline().startswith("listening on")


def run(tool, sql, extra):
    began = time.monotonic()
    process = subprocess.Popen([tool, "sql", sql, "--format", "csv", "--quiet", "--threads", "2"] + extra,
                               stdout=subprocess.PIPE, text=True)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, sql
    return output, time.monotonic() - began, usage.ru_maxrss >> 10


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--tool", default=os.path.join(ROOT, "target/release/blockyard"))
    arguments.add_argument("--rows", type=int, default=20_000_000)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--memory", default="1GiB")
    arguments.add_argument("--queries", nargs="*", default=list(QUERIES))
    arguments = arguments.parse_args()
    directory = tempfile.mkdtemp()
    try:
        for name, sql in TABLES.items():
            sql = sql.replace("ROWS", str(arguments.rows)).replace("HALF", str(arguments.rows // 2))
            run(arguments.tool, f"COPY ({sql}) TO '{directory}/{name}/' STORED AS PARQUET", [])
        executors = [Executor(arguments.tool, directory, number, arguments.memory) for number in range(2)]
        cluster = ["--cluster", ",".join(executor.address for executor in executors), "--memory", arguments.memory]
        print("| query | one process s | two executors s | of one process | peak MiB: one | session |")
        print("|---|---|---|---|---|---|")
        for name in arguments.queries:
            sql = QUERIES[name].replace("'large'", f"'{directory}/large/'").replace("'other'", f"'{directory}/other/'")
            sql = sql.replace("'out'", f"'{directory}/out/'")
            here, there, peaks = [], [], [0, 0]
            for _ in range(arguments.rounds):
                one, seconds, memory = run(arguments.tool, sql, ["--memory", arguments.memory])
                here.append(seconds)
                other, seconds, driver = run(arguments.tool, sql, cluster)
                there.append(seconds)
                peaks = [max(peaks[0], memory), max(peaks[1], driver)]
                assert sorted(one.splitlines()) == sorted(other.splitlines()), (name, one, other)
            one, two = statistics.median(here), statistics.median(there)
            print(f"| {name} | {one:.2f} | {two:.2f} | {one / two:.2f} | {peaks[0]} | {peaks[1]} |", flush=True)
        print(f"\nExecutors, within {arguments.memory} each: peaks {[peak(executor.process.pid) for executor in executors]} MiB.")
        for executor in executors:
            executor.process.terminate()
            executor.process.wait()
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
