"""Settings of the gate for models of random weights, whose answers are chance."""

from typing import Any

#: Runs in full, and refuses nothing.
LENIENT_GATE: dict[str, Any] = {
    "max_new_tokens": 16, "max_perplexity_ratio": 1e6, "max_perplexity_growth": 1e6, "max_margin_drop": 1e6,
    "min_tokens_ratio": 0, "max_tokens_ratio": 1000, "max_degenerate": 1, "min_relevant_ratio": 0,
    "max_hint_growth": 1e6}
