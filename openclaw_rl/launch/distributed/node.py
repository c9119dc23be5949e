"""Do one step on this host: `python -m openclaw_rl.launch.distributed.node STEP`, JSON in, JSON out.

A step's arguments come from stdin, or, for the steps that Ray's launcher runs, from files in `--home`. Progress goes to
stderr. The step `on-ray` does another one on hosts of the cluster.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
from typing import Any

from openclaw_rl.launch.distributed import cluster
from openclaw_rl.launch.distributed.steps import STEPS, StepError, do

_STEPS = STEPS | {"on-ray": cluster.do}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m openclaw_rl.launch.distributed.node",
                                     description="Do one step of distributed-start on this host.")
    parser.add_argument("step", choices=_STEPS)
    parser.add_argument("--home", help="the home here; arguments are not read from stdin then")
    args = parser.parse_args(argv)
    os.umask(0o077)  # what a step writes is its user's alone
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")
    payload = {"home": args.home} if args.home is not None else json.loads(sys.stdin.read() or "{}")
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is not an answer
    try:
        answer: dict[str, Any] = {"result": do(args.step, payload, _STEPS)}
    except StepError as error:
        answer = {"error": str(error)}
    except Exception as error:
        logging.exception("%s", args.step)
        answer = {"error": f"{type(error).__name__}: {error}"}
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(answer), file=out, flush=True)
    return 1 if "error" in answer else 0


if __name__ == "__main__":
    sys.exit(main())
