"""Environments, episodes' figures, and live views of leases."""

from __future__ import annotations

import io
import json

import pytest

from openclaw_rl.dashboard.data import environments, live
from openclaw_rl.monitoring.mesh import MeshData
from openclaw_rl.v1.environment_pb2 import Episode
from tests.dashboard.pages_mesh import PagesMesh, png
from tests.support.waiting import eventually


async def test_what_there_is(clients: MeshData) -> None:
    kinds, leases = await environments.overview(clients)
    assert [kind.type for kind in kinds] == ["terminal", "gui"]
    assert [lease.lease_id for lease in leases] == ["lease/1", "lease2", "lease3"]
    assert (await environments.lease(clients, "lease2") or kinds).type == "gui"  # type: ignore[union-attr]
    assert await environments.lease(clients, "nobody") is None
    assert (await environments.episode(clients, "e4") or Episode()).task_id == "task1"
    assert await environments.episode(clients, "nobody") is None
    assert len((await environments.episodes(clients, run="run-1", kind="terminal")).episodes) == 8


def episode(number: int, group: str, outcome: float | None, done: bool = True, task: str = "a") -> Episode:
    return Episode(episode_id=str(number), run_id="r", group_id=group, type="terminal", task_id=task, done=done,
                   outcome=outcome, steps=number)


def test_figures() -> None:
    some = [episode(5, "g2", None, False), episode(4, "g1", None), episode(3, "g1", 0.5), episode(2, "g1", 1),
            episode(1, "g0", 0, task="b")]
    a, b = environments.by_task(some)
    assert (a.task, a.episodes, a.broken, a.mean, a.done, a.steps) == ("a", 3, 1, 0.75, 1, 3)
    assert (b.task, b.episodes, b.done) == ("b", 1, 0)
    running, first, _ = environments.by_group(some)
    assert (running.group, running.running, running.mean) == ("g2", 1, None)
    assert (first.outcomes, first.broken, first.mean) == ((1, 0.5), 1, 0.75)
    assert environments.by_task([episode(1, "g", None)])[0].mean is None


async def test_one_stream_for_all_who_look(clients: MeshData, pages: PagesMesh) -> None:
    views = live.live_views(clients)
    assert views is live.live_views(clients)
    view = views.open("lease/1")
    assert views.open("lease/1") is view
    await eventually(lambda: view.changes > 2)
    assert pages.data.watched["lease/1"] == 1
    assert view.text.startswith("ls -l\nREADME\n$ <script>")
    assert "\x1b" not in view.text
    assert len(view.actions) == 1  # the same one is told again and again
    assert view.actions[0][1].startswith('run(command: "<script>')
    views.close("lease/1")
    assert views.streams == 1
    views.close("lease/1")
    assert views.streams == 0
    await eventually(lambda: pages.data.watched["lease/1"] == 0)


async def test_pictures_and_what_is_none(clients: MeshData) -> None:
    views = live.live_views(clients)
    gui, other = views.open("lease2"), views.open("lease3")
    await eventually(lambda: gui.changes > 0 and other.changes > 0)
    assert gui.image.startswith("data:image/png;base64,")
    assert len(gui.small) < len(gui.image)
    assert (other.image, other.small, other.text) == ("", "", "\ufffd half")
    views.close("lease2")
    views.close("lease3")


async def test_a_lease_that_is_gone_and_a_server_that_is_down(clients: MeshData, pages: PagesMesh,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_AGAIN", 0.05)
    views = live.live_views(clients)
    gone, view = views.open("nobody"), views.open("lease/1")
    await eventually(lambda: gone.ended and view.changes > 0)
    assert "there is no lease" in gone.problem
    pages.stop("env_server")
    await eventually(lambda: bool(view.problem))
    assert not view.ended
    pages.start("env_server")
    await eventually(lambda: not view.problem)
    views.close("nobody")
    views.close("lease/1")


@pytest.mark.parametrize(("observation", "text"), [
    ('{"text": "a"}', "a"), ("{}", ""), ("", ""), ("no json", "no json"), ('{"text": 1}', '{\n "text": 1\n}'),
    ("[1]", "[\n 1\n]"), ('{"text": "\\ud800"}', "\ufffd")])
def test_views(observation: str, text: str) -> None:
    assert live.shown_view(observation) == text


@pytest.mark.parametrize(("action", "shown"), [
    ('{"name": "click", "arguments": {"x": 1, "y": [2]}}', "click(x: 1, y: [2])"), ('{"name": "submit"}', "submit()"),
    ("", ""), ("nonsense", "nonsense"), ("[1]", "[1]"), ('{"name": "a", "arguments": "b"}',
                                                       '{"name": "a", "arguments": "b"}')])
def test_actions(action: str, shown: str) -> None:
    assert live.shown_action(action) == shown
    assert len(live.shown_action(json.dumps({"name": "x" * 10**6}))) == 4000


def test_a_picture_is_made_small_or_refused() -> None:
    from PIL import Image

    assert live.shown_image(b"<svg onload=alert(1)>") == live.shown_image(b"\x89PNG\r\n\x1a\n") == ""
    bomb = png(1, 1, (0, 0, 0)).replace(b"IHDR" + (1).to_bytes(4, "big"), b"IHDR" + (10**9).to_bytes(4, "big"))
    assert live.shown_image(bomb) == ""
    assert live.thumbnail(b"nothing") == live.thumbnail(bomb) == ""
    import base64

    small = live.thumbnail(png(1280, 800, (9, 9, 9))).partition(",")[2]
    assert max(Image.open(io.BytesIO(base64.b64decode(small))).size) == 384
