"""The generators that come from the Python package index: protoc, mypy-protobuf and buf, pinned, in one environment.

grpcio-tools 1.81.1 is deliberate: what it writes loads with protobuf 6.33 and all of 7, newer ones' only with 7.35+.
"""
import fcntl
import os
import subprocess
import sys
import venv
from pathlib import Path

PINS = ["grpcio-tools==1.81.1", "mypy-protobuf==5.1.0", "buf-bin==1.75.0", "googleapis-common-protos==1.76.0"]


def environment() -> Path:
    """The generators' bin folder, made on first use."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "openclaw-rl-tools"
    home = cache / "generate-1.81.1-5.1.0-1.75.0"
    done = home / "done"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "generate.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another one may be making it
        if not done.exists():
            print(f"making the generators' environment in {home} (once)", file=sys.stderr)
            venv.create(home, with_pip=True, clear=True)
            subprocess.run([home / "bin/pip", "install", "-q", *PINS], check=True, stdout=sys.stderr)
            done.touch()
    return home / "bin"
