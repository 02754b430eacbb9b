"""Where our tool spends its CPU time in one operation: samples of `perf`, in classes by the names of functions."""

import collections
import os
import re
import shutil
import subprocess
import sys

# The first class counts whose expression is in the name of the function that ran. Functions that were inlined have no
# samples of their own: theirs are those of the function that they are in.
CLASSES = [
    (
        "allocate",
        r"_rjem_|jemalloc|\b[mc]alloc\b|\brealloc\b|\bfree\b|__rdl_|__rust_(de|re)?alloc|RawVec|raw_vec|grow_one|"
        r"^(arena|tcache|extent|pac|pa|emap|edata|eset|base|sz|rtree|hpa|ecache|do_rallocx|[sd]?dallocx)_",
    ),
    (
        "decode",
        r"(?i)decode|decompress|^(ZSTD_(build|D)|HUF_(read|D)|FSE_(read|D))|unpack\d*|bit_?reader|record_reader|"
        r"arrow_reader|parquet::.*(read|thrift|page_index|schema)|ipc::read",
    ),
    (
        "encode",
        r"(?i)encode|compress|^(ZSTD|HUF|FSE|HIST)_|bit_?writer|parquet::.*(write|statistics|bloom)|ipc::.*writ",
    ),
    ("hash", r"(?i)hash|group_?values|RawTable|interner|intern\b|join_map"),
    (
        "copy",
        r"(?i)mem(cpy|move|set)|memcopy|\bcopy|\btake|interleave|concat|MutableArrayData|filter|gather|scatter|extend|"
        r"\bappend|coalesce|to_vec",
    ),
]
FREQUENCY = 499
BUILD = "CARGO_PROFILE_RELEASE_STRIP=none CARGO_PROFILE_RELEASE_DEBUG=line-tables-only cargo build --release"


def class_of(where, function):
    if where == "k":
        return "kernel"
    return next((name for name, names in CLASSES if re.search(names, function)), "other")


def samples(path):
    """Of each function that was seen: the part of the time, the binary, `k` for the kernel, and the name."""
    command = ["perf", "report", "--input", path, "--stdio", "--no-children", "-F", "period,dso,sym", "-t", "|"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|", 2)]
        if len(fields) == 3 and fields[0].isdigit():
            found.append((int(fields[0]), fields[1], fields[2][1:2], fields[2][4:]))
    whole = sum(count for count, *_ in found) or 1
    return [(count / whole, *rest) for count, *rest in found]


def need_perf():
    if not shutil.which("perf"):
        sys.exit("perf is not there, and callgrind makes all some fifty times slower: it would measure something else")


def profile(command, directory):
    """Runs a command and prints its classes of time, and the functions that took most of each."""
    path = os.path.join(directory, "perf.data")
    # The clock of the CPU is there also on virtual machines without counters.
    recorded = ["perf", "record", "--no-buildid-cache", "-e", "cpu-clock", "-F", str(FREQUENCY), "-o", path, "--"]
    with open(os.path.join(directory, "output"), "wb") as output:
        done = subprocess.run([*recorded, *command], stdout=output, stderr=subprocess.PIPE, text=True, errors="replace")
    if done.returncode:
        sys.exit(f"perf or the tool has failed: {(done.stderr.strip().splitlines() or ['killed'])[-1]}")
    found = samples(path)
    ours = [(part, name) for part, binary, _, name in found if binary == os.path.basename(command[0])]
    unnamed = sum(part for part, name in ours if re.match(r"0x[0-9a-f]+$|\[unknown\]", name))
    if not ours or unnamed > sum(part for part, _ in ours) / 2:
        sys.exit(f"the tool has no names of functions: build it with {BUILD}")
    classes = collections.defaultdict(list)
    for part, _, where, function in found:
        classes[class_of(where, function)].append((part, function))
    print("| class | % of CPU time | functions |\n|---|---:|---|")
    for name in ["kernel", "decode", "hash", "copy", "encode", "allocate", "other"]:
        most = sorted(classes[name], reverse=True)
        shown = most[: 12 if name == "other" else 4]
        functions = ", ".join(f"`{short(function)}` {part:.1%}" for part, function in shown)
        print(f"| {name} | {100 * sum(part for part, _ in most):.1f} | {functions} |")


def short(function):
    """A name without the paths of its generic arguments, of 90 characters at most."""
    function = re.sub(r"::h[0-9a-f]{16}$", "", function)
    while (shorter := re.sub(r"\b\w+::(?=\w+::)", "", function)) != function:
        function = shorter
    return (function if len(function) <= 90 else function[:87] + "...").replace("|", "/")
