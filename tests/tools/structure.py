"""The modules of tools/structure, for tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
try:
    from structure import graph, layers, picture, reach
finally:
    sys.path.pop(0)

__all__ = ["graph", "layers", "picture", "reach"]
