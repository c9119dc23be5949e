"""Entry point of a component's process: `python -m openclaw_rl.launch.component NAME [--config FILE]`.

Everything that it logs goes to stderr, which the supervisor writes to logs/NAME.log.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import os
import sys

from openclaw_rl.config import Config, ConfigError, load_config
from openclaw_rl.runtime import notify, proxies, redact
from openclaw_rl.runtime.component import Component
from openclaw_rl.runtime.home import COMPONENTS, Home
from openclaw_rl.runtime.process import end_with_parent
from openclaw_rl.runtime.runtime import Ambient, activated

#: Component -> its class, imported only where it runs.
_CLASSES = {
    "policy_server": "openclaw_rl.serving.server:PolicyComponent",
    "env_server": "openclaw_rl.rollouts.server:EnvironmentComponent",
    "prm_judge": "openclaw_rl.reward.server:JudgeComponent",
    "trainer": "openclaw_rl.training.server:TrainerComponent",
}

logger = logging.getLogger("openclaw_rl.launch")


def component_class(name: str) -> type[Component]:
    """The class of a component, whose packages this imports."""
    module, _, attribute = _CLASSES[name].partition(":")
    found: type[Component] = getattr(importlib.import_module(module), attribute)
    return found


def configure_logging(level: str) -> None:
    """Log to stderr, one line per record: time, level, logger, message; without secrets."""
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
    from openclaw_rl.rpc.component_run import ComponentRun, reason
    from openclaw_rl.rpc.errors import MeshError

    async def serve() -> None:
        async with recording(name, config, home):
            await ComponentRun(component_class(name), config, home, process=True, telemetry=True).run()

    # Errors are logged before and after the run, too.
    with activated(Ambient(redactor=redact.of_component(config)), process=True):
        try:
            asyncio.run(serve())
        except KeyboardInterrupt:
            return 0
        except Exception as error:
            why = reason(name, error)
            notify.failed(why)
            # An expected way to fail, whose text says what to do, has no traceback, which would only hide it.
            expected = isinstance(error, (MeshError, OSError, ConfigError))
            logger.error("%s can't run: %s", name, why, exc_info=not expected or logger.isEnabledFor(logging.DEBUG))
            return 1
        return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m openclaw_rl.launch.component",
                                     description="Run one component of the mesh in this process.",
                                     epilog="example: python -m openclaw_rl.launch.component trainer --config c.yaml")
    parser.add_argument("name", choices=COMPONENTS)
    parser.add_argument("--config", help="YAML file; default: config.yaml in the home, if there is one")
    parser.add_argument("--with-parent", type=int, metavar="PID", help="end when the parent process PID ends")
    args = parser.parse_args(argv)
    if args.with_parent is not None:
        end_with_parent(args.with_parent)
    home = Home.default()
    try:
        config = load_config(args.config or (home.config_file if home.config_file.exists() else None))
        home.create()
    except (ConfigError, OSError) as error:
        from openclaw_rl.rpc.component_run import reason

        why = reason(args.name, error)
        notify.failed(why)
        print(f"{args.name} can't run: {why}", file=sys.stderr)
        return 2
    configure_logging(config.log_level)
    proxies.spare(proxies.hosts_of(config), os.environ)
    return run(args.name, config, home)


if __name__ == "__main__":
    sys.exit(main())
