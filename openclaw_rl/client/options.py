"""Options of a call that puts several RPCs together, as a TypedDict says them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def check(call: str, given: Mapping[str, Any], allowed: type) -> None:
    """A misspelt option would pass for one that was left out.

    Raises:
        TypeError: an option is none of those of the TypedDict `allowed`.
    """
    if unknown := given.keys() - allowed.__annotations__.keys():
        raise TypeError(f"{call} has no option {', '.join(sorted(unknown))}; there are "
                        f"{', '.join(allowed.__annotations__)}")
