"""The documentation's shell commands: which are run as they stand, which a little otherwise, and which can't be.

What is run otherwise or not at all is still parsed by the real command line (test_blocks.py), so an option that there
isn't fails; the reason, and the test that runs the thing, stand beside each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tests.docs.blocks import without_comment

#: Not run: pattern of the command, why, and where it is run.
NOT_RUN: tuple[tuple[str, str], ...] = (
    (r"\./tools/(start|test)\b", "installs everything, and would run this test again; CI runs ./tools/test, the tests' "
                                 "own mesh is started by the local-start that ./tools/start ends with"),
    (r"source .*activate", "the tests run in an activated environment"),
    (r"(sudo )?(apt|apt-get|podman|docker|kubectl|prometheus|systemctl) ", "changes the machine, or isn't there"),
    (r"(python -m )?pip install ", "from an index; test_blocks.py looks that the extras are there"),
    (r"(cd \S+ && )?(go|cargo|mvn|npm|npx|node) ", "builds for minutes; tests/mesh/languages runs the examples"),
    (r"openclaw-rl distributed-start -c distributed_config.yaml$", "needs hosts: tests/hosts runs it"),
    (r"openclaw-rl mesh (export|join|leave)", "of a mesh on several hosts: tests/hosts runs them"),
    (r"openclaw-rl local-start --jaeger", "the tests' mesh is up; tests/mesh/test_traces.py starts one with Jaeger"),
    (r"openclaw-rl local-start --model", "downloads: tests/models/test_hub.py does, from a hub on this machine"),
    (r".*https://HOST:", "a door with HTTPS: tests/mesh/test_secure.py opens one, with key and CA"),
    (r"openclaw-rl dashboard --host 0\.0\.0\.0", "listens on the network; tests/dashboard does it"),
    (r"tools/agents-environment|\.venv/agents/", "installs frameworks: tests/mesh/test_agents.py runs them"),
    (r"python tools/chaos|tools/bench|python tools/bench", "takes minutes; tests/chaos and tests/mesh run parts"),
    (r"tensorboard ", "serves until it is ended; tests/training reads the event files with it"),
)

#: Run otherwise: pattern, what it becomes, why.
OTHERWISE: tuple[tuple[str, str, str], ...] = (
    (r"openclaw-rl chat$", "openclaw-rl chat --max-tokens 8 < question.txt", "a conversation needs somebody who types"),
    (r'openclaw-rl chat ("[^"]+")$', r"openclaw-rl chat --max-tokens 8 \1", "a short answer shows the same"),
    (r"openclaw-rl dashboard( --no-browser)?$", "first_line openclaw-rl dashboard --no-browser --port 0",
     "it runs until Ctrl-C, here until its first line"),
    (r"openclaw-rl metrics$", "first_line openclaw-rl metrics --port 0", "it runs until Ctrl-C"),
    (r"openclaw-rl logs -f (\w+)$", r"first_line openclaw-rl logs -f \1", "it runs until Ctrl-C"),
    (r"openclaw-rl environments watch LEASE$", "first_line openclaw-rl environments watch LEASE",
     "it runs until the lease ends"),
    (r"openclaw-rl episodes run --type mine\b[^>]*(>.*)?$",
     r"openclaw-rl episodes run --type tool_call --groups 1 --group-size 2 --max-steps 1 --no-train --json \1",
     "the mesh has no environment of that name; two episodes of one step show the same"),
    (r"openclaw-rl episodes run --type (terminal|all|tool_call)\b(.*)",
     r"openclaw-rl episodes run --type tool_call --groups 1 --group-size 2 --max-steps 1 --no-train",
     "64 episodes take minutes; two of one step show the same"),
    (r"(openclaw-rl conformance \w+ --address \S+)$", r"\1 --only 'component.status*'",
     "tests/conformance runs all checks"),
    (r"openclaw-rl forget --session SESSION", "openclaw-rl forget --session docs-forgotten",
     "the others read theirs"),
)

#: They change what other tests need, so they have a home of their own, without a mesh.
OWN_HOME = ("init", "keys", "certs", "stop-all")


def not_run(command: str) -> str:
    """Why a command can't be run here; empty when it can."""
    words = _bare(command)
    return next((why for pattern, why in NOT_RUN if re.match(pattern, words)), "")


def runnable(command: str, known: Mapping[str, str]) -> str:
    """What is run in place of a command.

    Args:
        known: texts of the documentation and what they are in the mesh under test: addresses, ids, a version.
    """
    text, _ = without_comment(command)
    for pattern, instead, _ in OTHERWISE:
        if re.match(pattern, text):
            text = re.sub(pattern, instead, text)
            break
    for name, value in known.items():
        text = re.sub(rf"(?<![\w.$]){re.escape(name)}(?![\w.])", lambda _, value=value: value, text)
    return text


def _bare(command: str) -> str:
    """Without comment and what stands before the program."""
    return re.sub(r"^(\w+=\S* )+", "", without_comment(command)[0]).strip()
