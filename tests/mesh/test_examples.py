"""The examples run as they stand, against the mesh."""

from __future__ import annotations

import re
from pathlib import Path

from tests.mesh.mesh import Mesh
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]


def test_async_demo(mesh: Mesh, tmp_path: Path) -> None:
    # The port is the only thing that is changed: the mesh under test takes any free one.
    text = (ROOT / "tests/examples/async_demo.py").read_text()
    demo = tmp_path / "async_demo.py"
    demo.write_text(text.replace("http://localhost:30000", mesh.url).replace("time.sleep(1)", "time.sleep(0.01)"))
    out = mesh.python(demo)
    assert out.count("received") == 10 and "policy QPS" in out
    counts = {key: int(n) for key, n in re.findall(r"^(interactions|judgements|updates): (\d+)$", out, re.M)}
    assert set(counts) == {"interactions", "judgements", "updates"}
    assert counts["interactions"] >= 9, "the last one may still be on its way"


def test_clients_of_python(mesh: Mesh) -> None:
    folder = ROOT / "clients/python"
    out = mesh.python(folder / "chat_openai.py", f"{mesh.url}/v1")
    assert re.search(r"^turn \S+ version \d+$", out, re.M)
    out = mesh.python(folder / "chat_grpc.py")
    assert re.search(r"\d+ tokens, versions \[\(\d+, 0, \d+\)", out)
    assert re.search(r"^feedback \S+ on \S+$", mesh.python(folder / "feedback.py"), re.M)
    out = mesh.python(folder / "chat.py")
    questions = ["What is a heron?", "Shorter, please: one sentence."]  # its answers may have such lines of their own
    assert re.search(r"^policy_server, contract \d", out)
    assert [line[2:] for line in out.splitlines() if line[:2] == "> " and line[2:] in questions] == questions
    sessions = re.findall(r"^  turn \S+ of (\S+), version \d+$", out, re.M)
    assert len(sessions) == 2 and len(set(sessions)) == 1 and re.search(r"^feedback \S+$", out, re.M)
    assert re.findall(r"^([+-]\d)  ", mesh.python(folder / "judge.py"), re.M)[:2] == ["-1", "+1"]
    assert "outcome 1" in mesh.python(folder / "lease.py")


def test_watching_versions(mesh: Mesh) -> None:
    import subprocess
    import sys

    with subprocess.Popen([sys.executable, str(ROOT / "clients/python/watch_versions.py")], env=mesh.env, text=True,
                          stdout=subprocess.PIPE) as watch:
        try:
            assert watch.stdout is not None
            assert "answers; kept: [0" in watch.stdout.readline()
        finally:
            watch.kill()


def test_a_component_is_attached_to(mesh: Mesh, monkeypatch: object) -> None:
    from openclaw_rl import EnvServer, PRMJudge, Trainer, get_component_stats

    pids = {name: mesh.record(name).pid for name in ("env_server", "prm_judge", "trainer")}
    env, judge, trainer = (cls.start(home=mesh.home) for cls in (EnvServer, PRMJudge, Trainer))
    assert env.total_interactions >= 0 and judge.total_judgments >= 0 and trainer.update_count >= 0
    assert {name: mesh.record(name).pid for name in pids} == pids
    stats = until(lambda: get_component_stats(mesh.home), 10)
    assert set(stats["components"].values()) == {"RUNNING"}
