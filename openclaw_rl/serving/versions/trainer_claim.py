"""The claim of one trainer to a policy server; a second trainer is a mistake that both sides must see."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import grpc

from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.alarms import Raised

logger = logging.getLogger(__name__)

#: Seconds for which a refused trainer is an alarm; a persistent one retries every few seconds.
REMEMBERED = 60.0
#: Seconds after which a refused trainer may retry.
RETRY = 5.0


class TrainerClaim:
    """Decides which trainer holds the weight stream.

    A trainer is identified by the id of its versions folder, so a restarted one takes over its own stream at once, even
    from a dead connection. Another one is refused while the first is connected, so that two never take the policy
    server from each other in turn. One without an id (another implementation) takes over.

    Args:
        clock: seconds, never going back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._current = ""
        self._refused: tuple[str, float] | None = None  # id, time of the last refusal

    def admit(self, trainer: str, connected: bool) -> None:
        """Admit a trainer to the stream.

        Args:
            trainer: its id; empty when it gave none.
            connected: the previous one still holds it.

        Raises:
            MeshError: ANOTHER_TRAINER, the previous one is a different trainer.
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
        """The alarm `two_trainers`; its message is empty without a second trainer."""
        if self._refused is None or self._clock() - self._refused[1] > REMEMBERED:
            return "two_trainers", ""
        return "two_trainers", (f"two trainers want to update this policy server: {self._current} does, "
                                f"{self._refused[0]} is refused; stop one of the two")
