#!/usr/bin/env python3
"""The journal's append cost and throughput, against logging's QueueHandler, QueueListener and FileHandler.

    .venv/bin/python tools/bench/journal.py [--lines 1000000] [--baseline-lines 200000] [--runs 3]

Both write the same line to a file. Throughput is from the first append until the last line is in the file. `append_us`
is what a line costs the appending thread at full speed, the writer's share of the interpreter included;
`append_us_paced` the same (median) at 2,000 lines a second. The runs alternate; medians are printed, in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import logging
import logging.handlers
import queue
import statistics
import sys
import tempfile
import time
from pathlib import Path

from openclaw_rl.config import JournalConfig
from openclaw_rl.observability.journal import Journal

TEXT = 'The file is empty, so "sort" has nothing to do.\nShall I look for the one that you meant?'
GOAL_US, GOAL_RATIO = 2.0, 10.0


def count_lines(folder: Path) -> int:
    """Lines in all files of the folder."""
    total = 0
    for path in folder.glob("*.log"):
        with path.open("rb") as file:
            while block := file.read(2**20):
                total += block.count(b"\n")
    return total


def journal(lines: int) -> tuple[float, float, int, int]:
    """Seconds of appending, seconds until all is in the file, lines lost, times that the buffer was full."""
    with tempfile.TemporaryDirectory() as tmp:
        log = Journal(Path(tmp), JournalConfig(keep_files=10_000))
        begin = time.perf_counter()
        for _ in range(lines):
            log.action("session-0042", 42, "MAIN", TEXT)
        appended = time.perf_counter()
        log.close()
        end = time.perf_counter()
        return appended - begin, end - begin, lines - count_lines(Path(tmp)), log.stats["overflows"]


def paced(seconds: float = 2.0, rate: int = 2000) -> float:
    """Median microseconds of an append at so many lines a second."""
    with tempfile.TemporaryDirectory() as tmp:
        log = Journal(Path(tmp))
        costs = []
        for _ in range(int(seconds * rate)):
            begin = time.perf_counter_ns()
            log.action("session-0042", 42, "MAIN", TEXT)
            costs.append(time.perf_counter_ns() - begin)
            time.sleep(1 / rate)
        log.close()
    return statistics.median(costs) / 1000


def queue_handler(lines: int) -> tuple[float, float, int]:
    """The same by logging: seconds of appending, seconds until all is in the file, lines lost."""
    with tempfile.TemporaryDirectory() as tmp:
        file = logging.FileHandler(Path(tmp) / "a.log")
        file.setFormatter(logging.Formatter("[%(asctime)s] %(message)s", "%Y-%m-%d %H:%M:%S"))
        entries: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
        listener = logging.handlers.QueueListener(entries, file)  # type: ignore[arg-type]
        logger = logging.getLogger("bench.journal")
        logger.propagate = False
        logger.setLevel(logging.INFO)
        handler = logging.handlers.QueueHandler(entries)  # type: ignore[arg-type]
        logger.addHandler(handler)
        listener.start()
        begin = time.perf_counter()
        for _ in range(lines):
            logger.info('[SESSION: %s] [VERSION: %d] [%s] Action: "%s"', "session-0042", 42, "MAIN",
                        TEXT.replace("\n", "\\n"))
        appended = time.perf_counter()
        listener.stop()
        file.close()
        end = time.perf_counter()
        logger.removeHandler(handler)
        return appended - begin, end - begin, lines - count_lines(Path(tmp))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000, help="lines of each run of the journal")
    parser.add_argument("--baseline-lines", type=int, default=200_000, help="lines of each run of QueueHandler")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    logging.getLogger("openclaw_rl").setLevel(logging.ERROR)
    ours, theirs = [], []
    for _ in range(args.runs):
        ours.append(journal(args.lines))
        theirs.append(queue_handler(args.baseline_lines))
    append_us = statistics.median(run[0] for run in ours) / args.lines * 1e6
    per_second = args.lines / statistics.median(run[1] for run in ours)
    baseline_us = statistics.median(run[0] for run in theirs) / args.baseline_lines * 1e6
    baseline_per_second = args.baseline_lines / statistics.median(run[1] for run in theirs)
    ratio = per_second / baseline_per_second
    lost = sum(run[2] for run in ours)
    print(json.dumps({
        "bench": "journal", "lines": args.lines, "runs": args.runs, "lost": lost,
        "append_us": round(append_us, 2), "append_us_paced": round(paced(), 2), "goal_append_us": GOAL_US,
        "lines_per_s": round(per_second), "full_buffer": statistics.median(run[3] for run in ours),
        "queue_handler_append_us": round(baseline_us, 2), "queue_handler_lines_per_s": round(baseline_per_second),
        "ratio": round(ratio, 2), "goal_ratio": GOAL_RATIO,
        "ok": lost == 0 and append_us <= GOAL_US and ratio >= GOAL_RATIO,
    }))
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
