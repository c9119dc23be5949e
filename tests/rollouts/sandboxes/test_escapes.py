"""Ways out of a sandbox, and ways to use up the machine: each is refused or contained, and costs nobody else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from openclaw_rl.rollouts.sandboxes.bubblewrap.backend import Bubblewrap
from openclaw_rl.rollouts.sandboxes.interface import Sandbox
from tests.rollouts.sandboxes import escapes
from tests.rollouts.sandboxes.attempts import ATTEMPTS, Attempt


@pytest.fixture(scope="module")
def host() -> Iterator[dict[str, object]]:
    with escapes.host() as target:
        yield target


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
async def test_an_attempt_to_get_out_is_refused(sandbox: Sandbox, host: dict[str, object], attempt: Attempt) -> None:
    assert (await escapes.attempt(sandbox, attempt, host)).startswith("refused: ")


@pytest.mark.parametrize("attempt", [attempt for attempt in ATTEMPTS if attempt.outside],
                         ids=lambda attempt: attempt.name)
def test_the_same_succeeds_outside(host: dict[str, object], attempt: Attempt) -> None:
    if attempt.name.startswith("control groups") and not escapes.is_root():
        pytest.skip("only root may write there")
    assert escapes.attempt_outside(attempt, host).startswith("ESCAPED")


@pytest.mark.parametrize("overload", escapes.OVERLOADS, ids=lambda overload: overload.name)
async def test_an_overload_is_contained(bubblewrap: Bubblewrap, sandbox: Sandbox, overload: escapes.Overload) -> None:
    bystander = await bubblewrap.make(escapes.SPEC)
    try:
        assert await overload.attempt(sandbox)
        assert (await bystander.run(["echo", "unharmed"])).output == b"unharmed\n"
    finally:
        await bystander.close()
