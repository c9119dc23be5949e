"""The command: python tools/conformance [SERVER ...] [options]."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
        command: as `openclaw-rl conformance --start` takes it; {root} is the repository, {upstream} an API.
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
    "trainer": Server("trainer", _OWN % "trainer" + " --upstream {upstream}"),
    "policy": Server("policy", _OWN % "policy"),
    "policy_api": Server("policy", _OWN % "policy" + " --upstream {upstream}"),
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
        "cd servers/trainer_java && mvn -q -B -Dmaven.test.skip=true -f reactor.xml package"),
    "policy_rust": Server(
        "policy", "{root}/clients/rust/target/debug/openclaw-rl-policy --listen {address} --data {data} "
        "--environment {listen} --upstream {upstream} --model conformance --http 127.0.0.1:0",
        "clients/rust/target/debug/openclaw-rl-policy", "cd clients/rust && cargo build -p openclaw-rl-policy"),
}
OWN = ("environment", "judge", "trainer", "policy", "policy_api")


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
        description="Run the conformance kit on the servers of this repository, one after another or\nside by side.",
        epilog="examples:\n  python tools/conformance                      our own\n"
               "  python tools/conformance judge judge_go        ours and the one in Go\n"
               "  python tools/conformance --foreign --junit out the four of other makes\n"
               "  python tools/conformance --write               README.md's table, from the checks")
    parser.add_argument("servers", nargs="*", metavar="SERVER", help=f"{', '.join(SERVERS)}; default our own ones")
    parser.add_argument("--foreign", action="store_true", help="those of other makes (they must be built)")
    parser.add_argument("--upstream", metavar="URL", help="base URL of the OpenAI-compatible API behind policy_api, "
                        "policy_rust and trainer, whose key is in OPENAI_API_KEY (default: that of the tests)")
    parser.add_argument("--certs", metavar="FOLDER", type=Path, help="over TLS, with the certificates of a mesh: "
                        "those that openclaw-rl init makes")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many servers side by side; each report is "
                        "shown when it is complete (default %(default)s)")
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
    if args.jobs < 1:
        parser.error(f"--jobs {args.jobs}: must be at least 1")
    with _upstream(args.upstream, names) as upstream, ThreadPoolExecutor(args.jobs) as pool:
        return max(pool.map(lambda name: _run(name, args, upstream), names))


@contextlib.contextmanager
def _upstream(given: str | None, names: list[str]) -> Iterator[str]:
    """The API that is given, or else the one of the tests where a server needs one."""
    if given or not any("{upstream}" in SERVERS[name].command for name in names):
        yield given or ""
        return
    from tests.mesh.fake_api import FakeApi

    api = FakeApi()
    try:
        yield api.url
    finally:
        api.close()


def _run(name: str, args: argparse.Namespace, upstream: str) -> int:
    server = SERVERS[name]
    head = f"\n== {name}"
    if server.built and not (_ROOT / server.built).exists():
        print(f"{head}\n{server.built} is not there: {server.build}", flush=True)
        return 2
    if args.jobs == 1:
        print(head, flush=True)
    command = server.command
    for word, value in (("{root}", str(_ROOT)), ("{python}", sys.executable), ("{upstream}", upstream)):
        command = command.replace(word, shlex.quote(value))
    call = [sys.executable, "-c", "from openclaw_rl.cli import main; main()", "conformance", server.service, "--start",
            command]
    if args.certs is not None:
        certs = str(args.certs.resolve())
        call[-1] += f" --certs {shlex.quote(certs)}"
        call += ["--certs", certs]
    if args.junit is not None:
        call += ["--junit", str(args.junit / f"{name}.xml")]
    for pattern in args.only:
        call += ["--only", pattern]
    kept = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if args.jobs > 1 else {}
    done = subprocess.run(call, check=False, text=True, **kept, env={  # type: ignore[call-overload]
        "OPENAI_API_KEY": "conformance", **os.environ, "PYTHONPATH": str(_ROOT)})
    if args.jobs > 1:
        print(f"{head}\n{done.stdout}", end="", flush=True)
    return int(done.returncode)


if __name__ == "__main__":
    sys.path.insert(0, str(_ROOT))
    sys.exit(main())
