"""Stands in for a server that takes a minute to start: it dies with its parent as `serve` does."""

from __future__ import annotations

import sys
import time

from openclaw_rl.serving.engines.sglang.serve import die_with

if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    print("up", flush=True)
    time.sleep(600)
