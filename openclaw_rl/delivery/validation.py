"""Validation of the ring's messages, as far as all receivers share it."""

from __future__ import annotations

import re
from enum import StrEnum

from openclaw_rl.runtime.rejection import Rejection

#: Characters of an id, at most.
LONGEST_ID = 256
#: Unicode's category Cc.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class RejectionCode(StrEnum):
    """Why a receiver rejects a message for good."""

    MALFORMED = "malformed"  #: a field is missing, or contradicts another one
    INVALID_ID = "invalid_id"
    OUT_OF_RANGE = "out_of_range"
    WRONG_CLASS = "wrong_class"  #: a turn that is not trained on
    WRONG_MESH = "wrong_mesh"
    ID_CONFLICT = "id_conflict"  #: the id was used before, for other content


def validate_id(field: str, id: str) -> Rejection[RejectionCode] | None:
    """Check an id, whose `field` the message names. Ids stand in logs, file names and spans, so they have a bounded
    length and no control characters."""
    if not 0 < len(id) <= LONGEST_ID:
        return Rejection(RejectionCode.INVALID_ID, f"{field}: {len(id)} characters; it must have 1 to {LONGEST_ID}")
    if _CONTROL.search(id):
        return Rejection(RejectionCode.INVALID_ID, f"{field}: {id[:40]!r} has control characters")
    return None
