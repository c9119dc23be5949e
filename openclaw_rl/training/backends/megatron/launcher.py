"""Run torchrun tied to the trainer's process.

Usage: `python -m openclaw_rl.training.backends.megatron.launcher FOLDER TORCHRUN-ARGUMENTS`.

It lives as long as its standard input is open, which the trainer's process holds; the ranks are killed with it by the
kernel (worker.py asks for that). What became of a rank that failed goes to standard output, as one line of JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading


def _end_with_parent(folder: str) -> None:
    while os.read(0, 4096):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def main() -> int:
    folder, *arguments = sys.argv[1:]
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run.main(arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        print(json.dumps({"rank": rank, "exit_code": failure.exitcode}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
