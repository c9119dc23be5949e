"""Tests that need what a machine may lack: left out there, unless nothing may be."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def left_out(why: str) -> NoReturn:
    """Skip the test that asks, or fail it where OPENCLAW_RL_TEST_REQUIRE=all. `why` says what is missing, and who
    brings it."""
    if os.environ.get("OPENCLAW_RL_TEST_REQUIRE") == "all":
        pytest.fail(f"{why} (OPENCLAW_RL_TEST_REQUIRE=all)")
    pytest.skip(why)
