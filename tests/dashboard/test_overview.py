"""The first screen in a real browser, of a mesh whose figures the test sets."""

from __future__ import annotations

import re
import signal
import ssl
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from openclaw_rl.rpc.auth.keys import KeyFile
from openclaw_rl.runtime.home import Home
from openclaw_rl.v1 import environment_pb2
from tests.dashboard.fakes import FakeMesh
from tests.dashboard.rig import Served, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

HOSTILE = "<img src=x onerror=\"window.hurt=1\"><script>window.hurt=1</script> \x1b[31mred\x1b[0m \u202e ${1} {{1+1}} `"


def _fill(mesh: FakeMesh) -> None:
    status = mesh.status
    status["policy_server"].gauges.update({"qps": 3.5, "running": 2, "waiting": 1, "tokens_per_s": 40,
                                           "latency_p50_ms": 812, "latency_p95_ms": 1500, "latency_p99_ms": 12_345,
                                           "first_token_p50_ms": 90, "first_token_p95_ms": 150,
                                           "first_token_p99_ms": 200, "prefix_cache_hit_rate": 0.874})
    status["prm_judge"].counters.update({"positive": 5, "votes": 9, "votes_failed": 1})
    status["prm_judge"].gauges["queue"] = 4
    status["trainer"].gauges.update({"loss": 0.42, "kl": 0.01, "grad_norm": 1.5, "staleness": 0.5, "pending": 3})
    status["trainer"].counters["updates"] = 2
    status["trainer"].detail = HOSTILE
    mesh.environments = [environment_pb2.EnvironmentInfo(type="terminal", kind="terminal", capacity=8, leased=3, warm=2,
                                                         waiting=1),
                         environment_pb2.EnvironmentInfo(type="<b>gui</b>", capacity=2, problem=HOSTILE)]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeMesh, Served]]:
    """A mesh and its dashboard, for the tests that need none of their own."""
    with FakeMesh(Home(tmp_path_factory.mktemp("overview") / "home")) as mesh:
        mesh.start()
        _fill(mesh)
        with serving(mesh.home) as served:
            yield mesh, served


def test_the_first_screen_is_live_and_safe(shown: tuple[FakeMesh, Served], browse: Any) -> None:
    mesh, served = shown
    _fill(mesh)
    watched = browse(served.url)
    page = watched.page
    tiles = page.get_by_role("region", name="Now")
    for text in ("3.50", "812 ms", "p95 1.50 s · p99 12.3 s", "90 ms", "87% of prompts cached", "1 waiting", "of 10"):
        expect(tiles).to_contain_text(text.replace("3.50", "3.5"), timeout=20_000)
    components = page.get_by_role("region", name="Components")
    expect(components.get_by_role("listitem")).to_have_count(4)
    expect(components).to_contain_text("<script>window.hurt=1</script>")
    environments = page.get_by_role("region", name="Environments", exact=True)
    expect(environments).to_contain_text("3 of 8 in use · 2 ready · 1 waiting")
    expect(environments).to_contain_text("<b>gui</b>")
    # Live: what a component tells next is there without a reload, at every chart too.
    mesh.status["policy_server"].gauges.update({"qps": 7.25, "latency_p50_ms": 333})
    mesh.status["policy_server"].policy_version = 12
    expect(tiles).to_contain_text("7.25")
    expect(tiles).to_contain_text("12")
    expect(page.get_by_role("region", name="Policy: Response time")).to_contain_text("p95 1.50 s")
    mesh.tell("VERSION_REFUSED", HOSTILE, version=13)
    expect(page.get_by_role("region", name="Events")).to_contain_text("Version 13 failed the eval gate")
    # A table for those who can't see a chart.
    page.get_by_role("button", name="Response time: show as table").click()
    dialog = page.get_by_role("dialog", name="Response time")
    expect(dialog.get_by_role("columnheader")).to_have_text(["Time", "p50", "p95", "p99"])
    expect(dialog.get_by_role("row").nth(1)).to_contain_text("s")
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_be_hidden()
    page.get_by_role("button", name="24 h").click()
    expect(page.get_by_role("button", name="24 h")).to_have_attribute("aria-pressed", "true")
    # A component that dies is told, since when, and again when it is back.
    mesh.stop("prm_judge")
    expect(page.get_by_role("status")).to_contain_text("prm_judge has not answered since")
    expect(components).to_contain_text("down")
    mesh.start("prm_judge")
    expect(page.get_by_role("status")).not_to_contain_text("prm_judge", timeout=15_000)
    assert page.evaluate("window.hurt") is None
    assert not watched.problems and watched.hosts == {f"127.0.0.1:{served.port}"}
    assert not [line for line in served.errors if line.startswith(("Traceback", "ERROR", "CRITICAL"))]


def test_it_is_usable_by_keyboard_phone_and_in_chinese(shown: tuple[FakeMesh, Served], browse: Any) -> None:
    mesh, served = shown
    _fill(mesh)
    watched = browse(served.url, width=360, height=740, dark=True, language="zh-CN")
    page = watched.page
    expect(page.get_by_role("heading", level=1)).to_have_text("总览")
    expect(page.locator("html")).to_have_attribute("lang", "zh")
    expect(page.locator(".d-chart canvas")).to_have_count(14)
    assert watched.sideways() <= 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 20, 27)"
    # The first stop of the keyboard leads past the header.
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "跳到正文"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    # Switches are buttons with names, and the choice is remembered.
    page.get_by_role("button", name=re.compile("配色")).press("Enter")
    expect(page.get_by_role("button", name=re.compile("配色：浅色|配色: 浅色"))).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(244, 246, 248)"
    page.get_by_role("button", name=re.compile("语言")).press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    page.goto(served.url)
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    assert _nameless(page) == []
    for role in ("banner", "navigation", "main", "status"):
        expect(page.get_by_role(role)).to_have_count(1)
    assert not watched.problems


def _nameless(page: Any) -> list[str]:
    """What can be used and has no name, images without a text, ids that are there twice, headings that skip a level."""
    return list(page.evaluate("""() => {
        const bad = [];
        const name = (e) => (e.getAttribute("aria-label") || e.textContent || e.title || "").trim();
        for (const e of document.querySelectorAll("button, a, input:not([type=hidden]), [role=img], select"))
            if (!name(e) && !(e.labels && e.labels.length)) bad.push(e.outerHTML.slice(0, 120));
        const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
        for (const id of new Set(ids.filter((id, i) => ids.indexOf(id) !== i))) bad.push("twice: " + id);
        let level = 0;
        for (const e of document.querySelectorAll("h1, h2, h3")) {
            if (+e.tagName[1] > level + 1) bad.push("skips: " + e.textContent);
            level = +e.tagName[1];
        }
        for (const e of document.querySelectorAll("[aria-describedby]"))
            for (const id of e.getAttribute("aria-describedby").split(" "))
                if (!document.getElementById(id)) bad.push("no such id: " + id);
        return bad;
    }"""))


def test_history_outlives_a_restart_and_an_open_page_comes_back(mesh: FakeMesh, browse: Any) -> None:
    _fill(mesh)
    first = Served(mesh.home)
    watched = browse(first.url)
    page = watched.page
    chart = page.get_by_role("region", name="Policy: Requests")
    expect(chart).to_contain_text("3.5")
    page.get_by_role("button", name="Requests: show as table").click()
    expect(page.get_by_role("dialog", name="Requests")).to_contain_text("3.5")
    page.get_by_role("dialog", name="Requests").get_by_role("button", name="Close").click()
    assert first.stop(signal.SIGKILL) != 0
    mesh.status["policy_server"].gauges["qps"] = 6.75
    with serving(mesh.home, "--port", str(first.port)):
        expect(page.get_by_role("region", name="Now")).to_contain_text("6.75", timeout=30_000)
        page.get_by_role("button", name="Requests: show as table").click()
        dialog = page.get_by_role("dialog", name="Requests")
        expect(dialog).to_contain_text("3.5")


def test_no_mesh_and_a_damaged_history_are_told_with_what_to_do(home: Home, browse: Any) -> None:
    folder = home.root / "dashboard"
    folder.mkdir()
    (folder / "history.db").write_bytes(b"nonsense" * 4000)
    with serving(home) as served:
        watched = browse(served.url)
        expect(watched.page.get_by_role("status")).to_contain_text("openclaw-rl local-start")
        expect(watched.page.get_by_role("status")).to_contain_text("history.db.damaged-")
        expect(watched.page.get_by_role("region", name="Components")).to_contain_text("not started")
        expect(watched.page.get_by_role("region", name="Policy: Requests")).to_contain_text("No data")
        assert not watched.problems


def test_signing_in_by_the_start_link_and_by_key(shown: tuple[FakeMesh, Served], browse: Any) -> None:
    mesh, served = shown
    keys = KeyFile(mesh.home.root / "keys.json")
    shown, _ = keys.add("boss", ["admin"])
    watched = browse(f"{served.url}/login#{served.token}")
    page = watched.page
    expect(page.get_by_role("button", name="Sign out (this machine)")).to_be_visible(timeout=15_000)
    assert served.token not in page.url and served.token not in page.content()
    cookies = {c["name"]: c for c in page.context.cookies()}
    cookie = cookies[f"openclaw_rl_session_{served.port}"]
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and served.token not in cookie["value"]
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("link", name="Sign in").click()
    page.get_by_label("Key").fill("ocl_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not valid here")
    page.get_by_label("Key").fill(shown)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Sign out (boss)")).to_be_visible()
    assert shown not in served.out + "".join(served.errors)


def test_on_a_network_it_is_https_and_a_revoked_key_is_out_of_an_open_page(
        mesh: FakeMesh, browse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from openclaw_rl.cli.certs import make_certificates

    make_certificates(mesh.home)
    keys = KeyFile(mesh.home.root / "keys.json")
    shown, _ = keys.add("viewer", ["read"])
    with serving(mesh.home, "--host", "0.0.0.0") as served:
        assert served.url.startswith("https://")
        trust = ssl.create_default_context(cafile=mesh.home.certs / "ca.crt")
        with httpx.Client(verify=trust, trust_env=False) as http:
            assert http.get(f"{served.url}/").status_code == 401
            assert http.get(f"{served.url}/_nicegui_ws/socket.io/?EIO=4&transport=polling").status_code == 401
        watched = browse(served.url, ignore_https_errors=True)
        page = watched.page
        page.get_by_label("Key").fill(shown)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        mesh.status["policy_server"].gauges["qps"] = 7.25
        assert all(c["secure"] for c in page.context.cookies() if "session" in c["name"])
        expect(page.get_by_role("region", name="Now")).to_contain_text("7.25")
        keys.revoke("viewer")
        expect(page.get_by_label("Key")).to_be_visible(timeout=15_000)


def test_many_tabs_cost_little_and_nothing_grows(shown: tuple[FakeMesh, Served], browse: Any) -> None:
    import psutil

    mesh, served = shown
    _fill(mesh)
    pages = [browse(served.url) for _ in range(3)]
    for watched in pages:
        expect(watched.page.locator(".d-chart canvas")).to_have_count(14, timeout=30_000)
    process = psutil.Process(served.process.pid)
    page = pages[0].page
    received = []
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.on("Network.webSocketFrameReceived", lambda e: received.append(len(e["response"]["payloadData"])))
    process.cpu_percent()
    page.wait_for_timeout(3000)
    assert process.cpu_percent() < 60, "three pages take more than half a core"
    assert 0 < sum(received) / 3 < 20_000, f"{sum(received) / 3:.0f} bytes a second"
    points = page.evaluate("""() => [...document.querySelectorAll(".d-chart")].map(
        (e) => getElement(Number(e.id.slice(1))).t.length)""")
    assert len(points) == 14 and max(points) <= 180
