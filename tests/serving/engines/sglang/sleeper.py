"""Stands in for a server that takes a minute to start: it dies with its parent as `serve` does."""

from __future__ import annotations

import signal
import sys
import time

from openclaw_rl.runtime.process import end_with_parent

if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]), signal.SIGKILL)
    print("up", flush=True)
    time.sleep(600)
