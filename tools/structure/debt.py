"""What goes against the layers and is known: to be emptied; nothing may be added."""

from __future__ import annotations

#: Keys of problems, as `layers.Problem` has them.
DEBT: frozenset[str] = frozenset({
})
