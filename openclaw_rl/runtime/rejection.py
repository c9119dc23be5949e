"""The result of a failed validation: a code for programs, a sentence for people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

Code = TypeVar("Code", bound=StrEnum, covariant=True)


@dataclass(frozen=True, slots=True)
class Rejection(Generic[Code]):
    """Why something can't be accepted, returned by functions named `validate_*` (None: accepted).

    Decide by `code` alone: it names the counter, the quarantine, the state that follows. `message` is made for the
    reader of a log, a status or an acknowledgement, and may change at any time.
    """

    code: Code
    message: str

    def __str__(self) -> str:
        return self.message
