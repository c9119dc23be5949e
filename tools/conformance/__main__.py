"""The command: python tools/conformance [SERVER ...] [options]."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_README = Path(__file__).with_name("README.md")
#: What stands around the generated table.
_BEGIN, _END = "<!-- checks: begin -->\n", "<!-- checks: end -->\n"


@dataclass(frozen=True)
class Server:
    """A server of this repository.

    Attributes:
        service: what it is.
        command: as `openclaw-rl conformance --start` takes it; {root} is the repository.
        built: a file that must be there; "" for none.
        build: how it comes about.
    """

    service: str
    command: str
    built: str = ""
    build: str = ""


_OWN = "{python} {root}/tools/conformance/own.py %s --address {address} --data {data} --listen {listen}"
SERVERS = {
    "environment": Server("environment", _OWN % "environment"),
    "judge": Server("judge", _OWN % "judge"),
    "trainer": Server("trainer", _OWN % "trainer"),
    "policy": Server("policy", _OWN % "policy"),
    "judge_go": Server(
        "judge", "{root}/servers/judge_go/judge_go --listen {address} --data {data} --trainer {listen}",
        "servers/judge_go/judge_go", "cd servers/judge_go && go build -o judge_go ."),
    "environment_typescript": Server(
        "environment", "node {root}/servers/environment_typescript/dist/main.js --listen {address} --data {data} "
        "--judge {listen} --policy {listen}", "servers/environment_typescript/dist/main.js",
        "cd servers/environment_typescript && npm run client && npm ci && npm run build"),
    "trainer_java": Server(
        "trainer", "java -jar {root}/servers/trainer_java/target/openclaw-rl-trainer.jar --listen {address} "
        "--data {data} --policy {listen}", "servers/trainer_java/target/openclaw-rl-trainer.jar",
        "servers/trainer_java/README.md says it"),
    "policy_rust": Server(
        "policy", "{root}/servers/policy_rust/target/debug/openclaw-rl-policy --listen {address} --data {data} "
        "--environment {listen} --upstream {upstream} --model conformance --http 127.0.0.1:0",
        "servers/policy_rust/target/debug/openclaw-rl-policy", "cd servers/policy_rust && cargo build"),
}
OWN = ("environment", "judge", "trainer", "policy")


def readme() -> str:
    """README.md with the table as it should be."""
    from openclaw_rl.conformance.frame import all_checks
    from openclaw_rl.conformance.report import table

    text = _README.read_text(encoding="utf-8")
    head, rest = text.split(_BEGIN, 1)
    checks = sorted(all_checks(), key=lambda one: one.id.partition(".")[0])
    return f"{head}{_BEGIN}{len(checks)} checks.\n\n{table(checks)}{_END}{rest.split(_END, 1)[1]}"


def main(argv: list[str] | None = None) -> int:
    """Returns 0 when all servers conform, 1 when one does not, 2 when one could not be asked."""
    parser = argparse.ArgumentParser(
        prog="python tools/conformance", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Run the conformance kit on the servers of this repository, one after another.",
        epilog="examples:\n  python tools/conformance                      our own four\n"
               "  python tools/conformance judge judge_go        ours and the one in Go\n"
               "  python tools/conformance --foreign --junit out the four of other makes\n"
               "  python tools/conformance --write               README.md's table, from the checks")
    parser.add_argument("servers", nargs="*", metavar="SERVER", help=f"{', '.join(SERVERS)}; default our own four")
    parser.add_argument("--foreign", action="store_true", help="those of other makes (they must be built)")
    parser.add_argument("--upstream", default="http://127.0.0.1:9/v1",
                        help="base URL of the OpenAI-compatible API behind policy_rust (default %(default)s)")
    parser.add_argument("--only", action="append", default=[], help="as in openclaw-rl conformance")
    parser.add_argument("--junit", type=Path, metavar="FOLDER", help="a JUnit file for each server goes there")
    parser.add_argument("--write", action="store_true", help="write README.md's table and end")
    parser.add_argument("--check", action="store_true", help="fail when README.md's table is out of date, and end")
    args = parser.parse_args(argv)
    if args.write or args.check:
        wanted = readme()
        if args.write:
            _README.write_text(wanted, encoding="utf-8")
        elif wanted != _README.read_text(encoding="utf-8"):
            print("tools/conformance/README.md is out of date: python tools/conformance --write", file=sys.stderr)
            return 1
        return 0
    unknown = [name for name in args.servers if name not in SERVERS]
    if unknown:
        parser.error(f"{unknown[0]!r} is no server: must be {', '.join(SERVERS)}")
    names = args.servers or [name for name in SERVERS if (name in OWN) != args.foreign]
    if args.junit is not None:
        args.junit.mkdir(parents=True, exist_ok=True)
    return max([_run(name, args) for name in names])


def _run(name: str, args: argparse.Namespace) -> int:
    server = SERVERS[name]
    print(f"\n== {name}", flush=True)
    if server.built and not (_ROOT / server.built).exists():
        print(f"{server.built} is not there: {server.build}", file=sys.stderr)
        return 2
    command = server.command
    for word, value in (("{root}", str(_ROOT)), ("{python}", sys.executable), ("{upstream}", args.upstream)):
        command = command.replace(word, shlex.quote(value))
    call = [sys.executable, "-c", "from openclaw_rl.cli import main; main()", "conformance", server.service, "--start",
            command]
    if args.junit is not None:
        call += ["--junit", str(args.junit / f"{name}.xml")]
    for pattern in args.only:
        call += ["--only", pattern]
    return subprocess.run(call, check=False, env={**os.environ, "OPENAI_API_KEY": "conformance",
                                                  "PYTHONPATH": str(_ROOT)}).returncode


if __name__ == "__main__":
    sys.path.insert(0, str(_ROOT))
    sys.exit(main())
