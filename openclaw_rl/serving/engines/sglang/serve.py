"""Launcher of an SGLang server that ends with its parent: `python -m openclaw_rl.serving.engines.sglang.serve PID ...`.

PID is the parent's; SGLang's own arguments follow. Started manually, for `sglang.addresses`, PID is 0 and the server
runs until it is stopped. The parent sets the variables that make SGLang load the platform and the hook; with PID 0
they are set here (`arguments.environment`).
"""

from __future__ import annotations

import os
import runpy
import signal
import sys

from openclaw_rl.runtime.process import end_with_parent


def main(arguments: list[str]) -> None:
    from openclaw_rl.serving.engines.sglang.arguments import environment
    from openclaw_rl.serving.engines.sglang.process import KEY

    parent = int(arguments[0])
    if parent:
        end_with_parent(parent, signal.SIGKILL)  # SGLang's own children follow it
    else:
        for name, value in environment().items():
            os.environ.setdefault(name, value)
    key = os.environ.pop(KEY, "")
    sys.argv = ["sglang.launch_server", *arguments[1:], *(["--api-key", key] if key else [])]
    runpy.run_module("sglang.launch_server", run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
