"""`python -m tests.conformance.wrong_weights --address HOST:PORT --data DIR --listen HOST:PORT [--fault NAME]`"""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path

from tests.conformance.wrong_weights.faults import FAULTS
from tests.conformance.wrong_weights.right import Serving, SmallPolicy


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--listen", default="")
    parser.add_argument("--fault", choices=FAULTS)
    options = parser.parse_args()
    make = FAULTS[options.fault].server if options.fault else SmallPolicy
    serving = Serving(make(options.data, options.listen), options.address)
    await serving.start()
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    await over.wait()
    await serving.stop()


if __name__ == "__main__":
    asyncio.run(main())
