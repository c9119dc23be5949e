"""torchrun without PyTorch, whose import takes seconds: starts the ranks, and ends them when one fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time


def main() -> int:
    options = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[2:] if "=" in argument)
    world = int(options["nproc-per-node"])
    assert options["max-restarts"] == "0" and options["rdzv-conf"] == "store_type=file"
    ranks = [subprocess.Popen([sys.executable, "-m", sys.argv[-1]], start_new_session=True,
                              env=os.environ | {"RANK": str(rank), "WORLD_SIZE": str(world)}) for rank in range(world)]
    threading.Thread(target=lambda: (os.read(0, 1), shutil.rmtree(sys.argv[1]), os._exit(1)), daemon=True).start()
    while True:
        codes = [rank.poll() for rank in ranks]
        for number, code in enumerate(codes):
            if code:
                for rank in ranks:
                    rank.kill()
                print(json.dumps({"rank": number, "exit_code": code}), flush=True)
                return 1
        if codes == [0] * world:
            return 0
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
