#!/usr/bin/env python3
"""Calls and streamed pieces a second of the client in each language, against Python's asynchronous one in the same run.

    python tools/bench/clients.py [--languages go,rust,...] [--seconds 4] [--rounds 3] [--callers 16] [--streams 8]

Each is a process of its own, one connection, to a policy server in Go that does no work: `Score` of 16 token ids by so
many callers at the same time, then so many `Chat` streams of 256 pieces each. Rounds alternate between the languages,
and the best round of each counts, since other processes can only slow one down. The server takes its share of the
machine, so a client that is much quicker than it shows less than it could. Prints one JSON line: a second, the ratio to
Python's, and of the cores that the client's own process had (near 0: others kept it waiting; don't trust the figure).

Go, Node with npm, Maven with a JDK and Cargo build what they need first (a few minutes the first time); a language
whose tools are missing is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent / "clients"
CLIENTS = HERE.parents[2] / "clients"
TOOLS = {"go": "go", "typescript": "npm", "java": "mvn", "rust": "cargo"}


def run(*command: str | Path, folder: Path = HERE, **variables: str) -> str:
    """Output of a command that has to succeed."""
    done = subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False, env=os.environ | variables)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def build(language: str, out: Path) -> list[str]:
    """The command line of a language's client, without its arguments."""
    match language:
        case "go":
            run("go", "build", "-o", out / "go", "./go")
            return [str(out / "go")]
        case "typescript":
            run("npm", "ci", "--silent", folder=CLIENTS / "typescript")
            run("npm", "run", "--silent", "build", folder=CLIENTS / "typescript")
            return ["node", str(HERE / "typescript.mjs")]
        case "java":
            run("mvn", "-q", "-B", "-Dmaven.test.skip=true", "package", "dependency:build-classpath",
                f"-Dmdep.outputFile={out / 'classpath'}", folder=CLIENTS / "java")
            [jar] = [jar for jar in (CLIENTS / "java/target").glob("openclaw-rl-client-*.jar")
                     if re.search(r"-\d+\.\d+\.\d+\.jar$", jar.name)]
            return ["java", "-cp", f"{jar}:{(out / 'classpath').read_text()}", str(HERE / "Bench.java")]
        case "rust":
            run("cargo", "build", "-q", "--locked", "--release", "-p", "bench-clients", folder=CLIENTS / "rust")
            return [str(CLIENTS / "rust/target/release/bench-clients")]
        case _:
            return [sys.executable, str(HERE / "python.py")]


def measure(command: list[str], *arguments: str) -> dict[str, float]:
    """One run: a second, and of the cores that it had."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    text = run(*command, *arguments, PYTHONPATH=str(HERE.parents[2]))
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - began
    data = json.loads(text.splitlines()[-1])
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"calls": data["calls"] / data["call_seconds"], "pieces": data["deltas"] / data["delta_seconds"],
            "cores": cpu / seconds}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--languages", default=",".join(TOOLS), help="beside Python (default: %(default)s)")
    parser.add_argument("--seconds", default="4", help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all")
    parser.add_argument("--callers", default="16", help="calls at the same time")
    parser.add_argument("--streams", default="8", help="streams at the same time")
    args = parser.parse_args()
    wanted = [name for name in args.languages.split(",") if name]
    if unknown := set(wanted) - TOOLS.keys():
        parser.error(f"--languages: {', '.join(unknown)}: must be of {', '.join(TOOLS)}")
    there = [name for name in wanted if shutil.which(TOOLS[name])]
    for name in set(wanted) - {*there}:
        print(f"left out: {name} ({TOOLS[name]} is missing)", file=sys.stderr)

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        commands: dict[str, list[str]] = {}
        for name in ("python", *there):
            print(f"building {name}", file=sys.stderr)
            commands[name] = build(name, out)
        kinds = {"python": [*commands.pop("python"), "async"]}
        kinds["python_blocking"] = [*kinds["python"][:-1], "sync"]
        kinds |= commands
        run("go", "build", "-o", out / "stub", "./stub")
        stub = subprocess.Popen([out / "stub"], stdout=subprocess.PIPE, text=True)
        try:
            assert stub.stdout is not None
            address = stub.stdout.readline().strip()
            best: dict[str, dict[str, float]] = {}
            for number in range(args.rounds):
                for name, command in kinds.items():
                    mode = command[-1:] if name.startswith("python") else []
                    program = command[: len(command) - len(mode)]
                    figures = measure(program, address, args.seconds, args.callers, args.streams, *mode)
                    print(f"round {number + 1}, {name}: {figures['calls']:.0f} calls/s, "
                          f"{figures['pieces']:.0f} pieces/s", file=sys.stderr)
                    old = best.setdefault(name, figures)
                    best[name] = {key: max(old[key], figures[key]) for key in figures}
        finally:
            stub.kill()
            stub.wait()
    base = best["python"]
    result: dict[str, Any] = {"bench": "clients", "languages": {name: {
        "calls_per_s": round(figures["calls"]), "pieces_per_s": round(figures["pieces"]),
        "calls_ratio": round(figures["calls"] / base["calls"], 2),
        "pieces_ratio": round(figures["pieces"] / base["pieces"], 2), "cores": round(figures["cores"], 2)}
        for name, figures in best.items()}}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
