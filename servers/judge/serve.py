"""Judge in a process of your own: `python servers/judge/serve.py [config.yaml]`."""

import asyncio
import sys

from openclaw_rl.config import load_config
from openclaw_rl.launch.component import configure_logging
from openclaw_rl.reward.server import run
from openclaw_rl.runtime.home import Home

if __name__ == "__main__":
    config = load_config(sys.argv[1] if len(sys.argv) > 1 else None)
    configure_logging(config.log_level)
    asyncio.run(run(config, Home.default().create()))
