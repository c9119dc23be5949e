"""The journal: one readable line for each action, next state, score and hint.

    [2026-03-16 15:30:45] [SESSION: abc123] [VERSION: 42] [MAIN] Action: "..."
"""

from openclaw_rl.observability.journal.journal import Journal

__all__ = ["Journal"]
