"""Entry point of a component's process: `python -m openclaw_rl.launch.component NAME [--config FILE]`.

Everything that it logs goes to stderr, which the supervisor writes to logs/NAME.log.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import os
import signal
import sys

from openclaw_rl.config import Config, ConfigError, load_config
from openclaw_rl.runtime import redact
from openclaw_rl.runtime.home import COMPONENTS, Home

#: Component -> module whose `run(config, home)` serves until stopped.
SERVERS = {
    "policy_server": "openclaw_rl.serving.server",
    "env_server": "openclaw_rl.rollouts.server",
    "prm_judge": "openclaw_rl.reward.server",
    "trainer": "openclaw_rl.training.server",
}

#: Of linux/prctl.h.
_PR_SET_PDEATHSIG = 1

logger = logging.getLogger("openclaw_rl.launch")


def configure_logging(level: str) -> None:
    """One line per record on stderr: time, level, logger, message; without secrets."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(redact.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    redact.tell_faults_by_log()
    for noisy in ("httpx", "httpcore", "openai", "asyncio", "uvicorn.access"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLevelName(level)))


def run(name: str, config: Config, home: Home) -> int:
    """Serve until told to stop.

    Returns:
        0 after a stop that was asked for, 1 when it could not start (the log says why in one line).
    """
    from openclaw_rl.monitoring.recorder import recording
    from openclaw_rl.observability import telemetry
    from openclaw_rl.rpc.errors import MeshError

    server = importlib.import_module(SERVERS[name])
    telemetry.setup(name, config.telemetry, home)

    async def serve() -> None:
        async with recording(name, config, home):
            await server.run(config, home)

    try:
        asyncio.run(serve())
    except KeyboardInterrupt:
        return 0
    except (MeshError, OSError, ConfigError) as error:
        # Expected ways to fail, whose text says what to do; a traceback would only hide it.
        logger.error("%s can't run: %s", name, error, exc_info=logger.isEnabledFor(logging.DEBUG))
        return 1
    finally:
        telemetry.shutdown()
    return 0


def end_with_parent(pid: int) -> None:
    """Have the kernel send SIGTERM to this process when the thread that started it is gone (prctl(2)); at once when it
    is gone already. Elsewhere than on Linux nothing happens."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != pid:
        sys.exit(0)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m openclaw_rl.launch.component",
                                     description="Run one component of the mesh in this process.",
                                     epilog="example: python -m openclaw_rl.launch.component trainer --config c.yaml")
    parser.add_argument("name", choices=COMPONENTS)
    parser.add_argument("--config", help="YAML file; default: the home's config.yaml when there is one")
    parser.add_argument("--with-parent", type=int, metavar="PID", help="end when this process, its parent, has ended")
    args = parser.parse_args(argv)
    if args.with_parent is not None:
        end_with_parent(args.with_parent)
    home = Home.default()
    try:
        config = load_config(args.config or (home.config_file if home.config_file.exists() else None))
        home.create()
    except (ConfigError, OSError) as error:
        print(f"{args.name} can't run: {error}", file=sys.stderr)
        return 2
    configure_logging(config.log_level)
    return run(args.name, config, home)


if __name__ == "__main__":
    sys.exit(main())
