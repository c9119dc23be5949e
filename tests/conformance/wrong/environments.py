"""Our environment server with one thing wrong: python environments.py FAULT, with the home in OPENCLAW_RL_HOME."""

from __future__ import annotations

import sys
from typing import Any

#: Name of a fault -> the check that fails, and a pattern of what was seen.
EXPECTED = {"loses-order": ("onward.order", "place 0 has"),
            "last-message-only": ("environment.next-state", "the messages are .* between the two responses were"),
            "keeps-leases": ("environment.lease", "ListLeases tells it after Release")}


def loses_order() -> None:
    from openclaw_rl.environment import server

    right = server._request
    server._request = lambda payloads: right(payloads[::-1])


def last_message_only() -> None:
    from openclaw_rl.environment import sessions

    right = sessions.messages_behind

    def wrong(*args: Any) -> Any:
        return right(*args)[-1:]

    sessions.messages_behind = wrong


def keeps_leases() -> None:
    from openclaw_rl.environment.pool.pool import Pool

    async def nothing(self: Pool, lease_id: str) -> None:
        """Forgets to give it back."""

    Pool.release = nothing  # type: ignore[method-assign]


if __name__ == "__main__":
    globals()[sys.argv[1].replace("-", "_")]()
    from openclaw_rl.launch.component import main

    sys.exit(main(["env_server"]))
