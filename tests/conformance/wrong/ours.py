"""Our environment server, or our trainer, with one thing wrong: python -m tests.conformance.wrong.ours FAULT --address
HOST:PORT --data DIR --listen HOST:PORT."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

#: Name of a fault -> what has it, the check that fails, and a pattern of what was seen.
EXPECTED = {
    "loses_order": ("environment", "onward.order", "place 0 has"),
    "last_message_only": ("environment", "environment.next-state",
                          "the messages are .* between the two responses were"),
    "keeps_leases": ("environment", "environment.lease", "ListLeases tells it after Release"),
    "trains_on_what_failed": ("trainer", "trainer.fates", "is pending"),
    "tells_the_newest_first": ("trainer", "trainer.fates.list", "asked for .*; told "),
    "forgets_pauses": ("trainer", "trainer.pause.kept", "TrainNow after the restart (succeeded|was answered)"),
}


def loses_order() -> None:
    from openclaw_rl.rollouts import server

    right = server.make_request
    server.make_request = lambda kind, field, payloads: right(kind, field, [*payloads][::-1])


def last_message_only() -> None:
    from openclaw_rl.rollouts.tracking import event_handler, linking, next_state

    def wrong(*args: Any) -> Any:
        return next_state.messages_behind(*args)[-1:]

    event_handler.messages_behind = linking.messages_behind = wrong


def keeps_leases() -> None:
    from openclaw_rl.rollouts.leases.pool import LeasePool

    async def nothing(self: LeasePool, lease_id: str) -> None:
        """Forgets to give it back."""

    LeasePool.release = nothing  # type: ignore[method-assign]


def trains_on_what_failed() -> None:
    from openclaw_rl.training.buffer import intake, sample_buffer

    for module in (intake, sample_buffer):
        module.validate_sample = lambda sample, max_tokens: None  # type: ignore[attr-defined]


def tells_the_newest_first() -> None:
    from openclaw_rl.training.buffer.sample_buffer import SampleBuffer

    right = SampleBuffer.statuses
    SampleBuffer.statuses = lambda self, turn_ids: right(self, turn_ids)[::-1]  # type: ignore[method-assign]


def forgets_pauses() -> None:
    from openclaw_rl.training.service import TrainerService

    async def pause(self: Any, reason: str) -> None:
        self._scheduler.paused = reason

    TrainerService.pause = pause  # type: ignore[method-assign]


def main() -> int:
    import yaml

    from openclaw_rl.conformance.services import SERVICES
    from tools.conformance.own import configuration

    parser = argparse.ArgumentParser()
    parser.add_argument("fault", choices=EXPECTED)
    parser.add_argument("--address")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--listen")
    args = parser.parse_args()
    service = EXPECTED[args.fault][0]
    components = configuration(service, int(args.address.rpartition(":")[2]), args.listen)
    (args.data / "config.yaml").write_text(yaml.safe_dump({"components": components}))
    os.environ["OPENCLAW_RL_HOME"] = str(args.data)
    globals()[args.fault]()
    from openclaw_rl.launch.component import main

    return main([SERVICES[service].component])


if __name__ == "__main__":
    sys.exit(main())
