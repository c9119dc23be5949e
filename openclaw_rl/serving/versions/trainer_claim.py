"""One trainer updates a policy server; a second one is a mistake that both sides must see."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import grpc

from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.alarms import Raised

logger = logging.getLogger(__name__)

#: Seconds for which a second trainer that was refused is an alarm; one that is still there tries every few seconds.
REMEMBERED = 60.0
#: Seconds after which a refused trainer may ask again.
RETRY = 5.0


class TrainerClaim:
    """Who has the weight stream.

    A trainer names itself by the id of its versions folder, so a restarted one is known and takes its own stream over
    at once, also from a dead connection of its own. Another one waits for as long as the first is connected: that way
    two of them never take the policy server from each other in turn. One without an id (of another make) takes over.

    Args:
        clock: seconds, never going back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._current = ""
        self._refused: tuple[str, float] | None = None  # who, and when last

    def admit(self, trainer: str, connected: bool) -> None:
        """Let a trainer have the stream.

        Args:
            trainer: its id; empty when it gave none.
            connected: the one before still has it.

        Raises:
            MeshError: ANOTHER_TRAINER, the one before is another one.
        """
        if connected and trainer and self._current and trainer != self._current:
            if self.alarm[1] == "":
                logger.error("a second trainer, %s, wants to update this policy server; %s already does", trainer,
                             self._current)
            self._refused = trainer, self._clock()
            raise MeshError(grpc.StatusCode.FAILED_PRECONDITION, "ANOTHER_TRAINER",
                            f"another trainer ({self._current}) updates this policy server, this one ({trainer}) can't "
                            "too: stop one of the two, or give this one a policy server of its own (components."
                            "policy_server.address, trainer.policy_servers)", retry_after=RETRY)
        self._current = trainer

    @property
    def alarm(self) -> Raised:
        """Without a message when there is no second trainer."""
        if self._refused is None or self._clock() - self._refused[1] > REMEMBERED:
            return "two_trainers", ""
        return "two_trainers", (f"two trainers want to update this policy server: {self._current} does, "
                                f"{self._refused[0]} is refused; stop one of the two")
