"""Where our tool spends its CPU time in one operation: samples of `perf`, in classes by the names of functions."""

import collections
import os
import re
import shutil
import subprocess
import sys

# The first class counts whose expression is in the name of the function that ran. Calls are those without inlined ones.
CLASSES = [
    ("allocate", r"_rjem_|jemalloc|\b[mc]alloc\b|\brealloc\b|\bfree\b|__rdl_|__rust_(de|re)?alloc|RawVec|^(arena|tcache|"
                 r"extent|pac|pa|emap|edata|eset|base|sz|rtree|hpa|ecache|do_rallocx|i?[sd]?dallocx)_|MmapInner|grow_one"),
    ("decode", r"(?i)decode|decompress|parquet::.*(read|page_index|thrift|schema)|arrow_reader|record_reader|Skip|bit_reader|"
               r"unpack\d*|BitReader|ipc::read"),
    ("encode", r"(?i)encode|compress|parquet::.*(write|encrypt|statistics)|ArrowWriter|BitWriter|ipc::.*writ|Dedup|"
               r"^(ZSTD|HUF|FSE|HIST|ZSTDMT)_|bloom"),
    ("hash", r"(?i)hash|group_values|GroupValues|RawTable|intern|Interner|gather_hashes|join_map|Zipf|radix"),
    ("copy", r"(?i)mem(cpy|move|set)|copy|take|interleave|concat|MutableArrayData|filter|gather|scatter|extend|append|"
             r"transform::|coalesce|clone|slice|push"),
]
FREQUENCY = 499
BUILD = "CARGO_PROFILE_RELEASE_STRIP=none CARGO_PROFILE_RELEASE_DEBUG=line-tables-only cargo build --release"


def class_of(binary, function):
    if binary.startswith("[") and "vdso" not in binary:
        return "kernel"
    return next((name for name, names in CLASSES if re.search(names, function)), "other")


def samples(path):
    """(part of the time, binary, function) of each function that was seen."""
    command = ["perf", "report", "--input", path, "--stdio", "--no-children", "-F", "period,dso,sym", "-t", "|"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|", 2)]
        if len(fields) == 3 and fields[0].isdigit():
            found.append((int(fields[0]), fields[1], re.sub(r"^\[.\] ", "", fields[2])))
    whole = sum(count for count, _, _ in found) or 1
    return [(count / whole, binary, function) for count, binary, function in found]


def profile(command, directory):
    """Runs a command and prints its classes of time, and the functions that took most of each."""
    if not shutil.which("perf"):
        sys.exit("perf is not there, and callgrind makes all some fifty times slower: it would measure something else")
    path = os.path.join(directory, "perf.data")
    # The clock of the CPU is there also on virtual machines without counters.
    recorded = ["perf", "record", "-e", "cpu-clock", "-F", str(FREQUENCY), "-o", path, "--", *command]
    with open(os.path.join(directory, "output"), "wb") as output:
        done = subprocess.run(recorded, stdout=output, stderr=subprocess.PIPE, text=True, errors="replace")
    if done.returncode:
        sys.exit(f"perf or the tool has failed: {(done.stderr.strip().splitlines() or ['killed'])[-1]}")
    found = samples(path)
    ours = [(part, name) for part, binary, name in found if binary == os.path.basename(command[0])]
    unnamed = sum(part for part, name in ours if re.match(r"0x[0-9a-f]+$|\[unknown\]", name))
    if not ours or unnamed > sum(part for part, _ in ours) / 2:
        sys.exit(f"the tool has no names of functions: build it with {BUILD}")
    classes = collections.defaultdict(list)
    for part, binary, function in found:
        classes[class_of(binary, function)].append((part, function))
    print("| class | % of CPU time | functions |\n|---|---:|---|")
    for name in ["kernel", "decode", "hash", "copy", "encode", "allocate", "other"]:
        most = sorted(classes[name], reverse=True)
        functions = ", ".join(f"`{short(function)}` {part:.1%}" for part, function in most[: 12 if name == "other" else 4])
        print(f"| {name} | {100 * sum(part for part, _ in most):.1f} | {functions} |")


def short(function):
    """A name without the paths of its generic arguments, of 90 characters at most."""
    function = re.sub(r"::h[0-9a-f]{16}$", "", function)
    while (shorter := re.sub(r"\b\w+::(?=\w+::)", "", function)) != function:
        function = shorter
    return (function if len(function) <= 90 else function[:87] + "...").replace("|", "/")
