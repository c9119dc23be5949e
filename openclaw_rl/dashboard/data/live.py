"""Live views of leased sandboxes: one stream per lease, shared by all readers."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import struct
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from google.protobuf.duration_pb2 import Duration

from openclaw_rl.dashboard.data import texts
from openclaw_rl.dashboard.data.parts import FAILURES, reason
from openclaw_rl.runtime.json import parse_json

if TYPE_CHECKING:
    from openclaw_rl.monitoring.mesh import MeshData
    from openclaw_rl.v1.environment_pb2 import Lease, WatchLeaseResponse

#: Seconds between two views of a lease that is looked at.
INTERVAL = 1.0
#: Seconds after which a broken stream is tried again.
_AGAIN = 2.0
#: Actions of a lease that are kept while somebody looks at it.
_ACTIONS = 100
#: Characters of a terminal's view, of an action, and bytes of a screenshot.
_VIEW, _ACTION, _IMAGE = 16_000, 4000, 8 * 2**20
#: Pixels of a screenshot that is shown, and of its small picture.
_PIXELS, _THUMBNAIL = 40_000_000, (384, 384)
_PNG = b"\x89PNG\r\n\x1a\n"


_shared: WeakKeyDictionary[MeshData, LiveViews] = WeakKeyDictionary()


@dataclass
class View:
    """What is seen of a lease now.

    Attributes:
        changes: grows with each change.
        text: a terminal's last lines, or the windows as text; plain and inert.
        image: a data: URL of the screenshot; empty when there is none, or it is no PNG.
        small: the same, small.
        actions: the newest actions since somebody looks, each (seconds since the epoch, inert text), oldest first.
        ended: the lease is over.
        problem: why nothing comes; empty while it does.
    """

    changes: int = 0
    lease: Lease | None = None
    text: str = ""
    image: str = ""
    small: str = ""
    at: float = 0.0
    actions: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=_ACTIONS))
    ended: bool = False
    problem: str = ""


def live_views(mesh: MeshData) -> LiveViews:
    """The views that all readers of a mesh share."""
    return _shared.setdefault(mesh, LiveViews(mesh))


class LiveViews:
    """Streams of the leases that somebody looks at. Belongs to one event loop."""

    def __init__(self, mesh: MeshData) -> None:
        self._mesh = mesh
        self._views: dict[str, View] = {}
        self._viewers: dict[str, int] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def streams(self) -> int:
        """Leases whose streams are open."""
        return len(self._tasks)

    def open(self, lease_id: str) -> View:
        """One more looks at the lease."""
        self._viewers[lease_id] = self._viewers.get(lease_id, 0) + 1
        if lease_id not in self._views:
            self._views[lease_id] = View()
            self._tasks[lease_id] = asyncio.get_running_loop().create_task(self._follow(lease_id))
        return self._views[lease_id]

    def close(self, lease_id: str) -> None:
        """One less looks at it; with the last one its stream ends."""
        self._viewers[lease_id] -= 1
        if not self._viewers[lease_id]:
            del self._viewers[lease_id], self._views[lease_id]
            self._tasks.pop(lease_id).cancel()

    async def _follow(self, lease_id: str) -> None:
        view = self._views[lease_id]
        while True:
            try:
                async for seen in self._mesh.environment().watch_lease(
                        lease_id=lease_id, interval=Duration(nanos=int(INTERVAL * 1e9) % 10**9, seconds=int(INTERVAL))):
                    await _take(view, seen)
                    if view.ended:
                        return
            except FAILURES as error:
                gone = getattr(getattr(error, "code", None), "name", "") == "NOT_FOUND"
                if view.problem != reason(error) or gone != view.ended:
                    view.problem, view.ended = reason(error), gone
                    view.changes += 1
                if gone:
                    return
            await asyncio.sleep(_AGAIN)


async def _take(view: View, seen: WatchLeaseResponse) -> None:
    steps = view.lease.steps if view.lease is not None else -1
    action = shown_action(seen.action_json)
    if action and (seen.lease.steps != steps or not view.actions or view.actions[-1][1] != action):
        view.actions.append((time.time(), action))
    view.lease, view.ended, view.problem = seen.lease, seen.ended, ""
    view.at = seen.at.seconds + seen.at.nanos / 1e9
    if seen.HasField("view"):
        view.text, view.image = shown_view(seen.view.json), shown_image(seen.view.image_png)
        view.small = await asyncio.to_thread(thumbnail, seen.view.image_png) if view.image else ""
    view.changes += 1


def shown_view(observation_json: str) -> str:
    """What an observation has for the eye, as inert text."""
    return texts.terminal(observation_text(observation_json), _VIEW)


def observation_text(observation_json: str) -> str:
    """The `text` of an observation; the whole of one that has none."""
    try:
        found: Any = parse_json(observation_json or "{}")
    except ValueError:
        return observation_json
    if isinstance(found, dict) and isinstance(found.get("text"), str):
        return str(found["text"])
    return json.dumps(found, ensure_ascii=False, indent=1) if found else ""


def shown_image(png: bytes) -> str:
    """A data: URL of a picture; empty when it is none, or too large to show again and again."""
    if not png.startswith(_PNG) or not 24 < len(png) <= _IMAGE:
        return ""
    width, height = struct.unpack(">II", png[16:24])
    if width * height > _PIXELS:
        return ""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def thumbnail(png: bytes) -> str:
    """A small picture of a picture; the picture itself where none can be made."""
    try:
        from PIL import Image

        with Image.open(io.BytesIO(png), formats=["PNG"]) as picture:
            small = picture.convert("RGB")
            small.thumbnail(_THUMBNAIL)
            out = io.BytesIO()
            small.save(out, "PNG")
        return shown_image(out.getvalue())
    except ImportError:
        return shown_image(png)
    except Exception:  # whatever a sandbox calls a screenshot
        return ""


def shown_action(action_json: str) -> str:
    """An action as a call, in one inert line."""
    if not action_json:
        return ""
    try:
        found = parse_json(action_json)
        arguments = found.get("arguments") or {}
        call = ", ".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
        return texts.line(f"{found.get('name', '?')}({call})", _ACTION)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return texts.line(action_json, _ACTION)
