"""Learning: does the policy become what its user wants, and does it still answer the question?

    python tools/bench/learning.py [--seeds 3] [--interactions 36] [--in-process]

A scripted user dislikes markdown, answers over 60 words and unfinished ones. Four of its kind ask at a time, complain
(or say thanks) in their next message, and wait for the version that was trained on it. Before the first and after each
12 interactions, 24 held-out questions are asked as side turns, which nobody trains on, and scored:
- style: no markdown, at most 60 words, finished within 96 tokens;
- on_topic: shares a content word with the question, has at least three others, asks nothing back, repeats nothing;
- both; and terms: at least two words of a hand-written list for each question, a hint of whether it is right.

Each seed gets a mesh of its own (own folder, free ports), which is driven over HTTP; TrainerService tells when a
version is active. --in-process drives engine, judge and trainer without the mesh, in about the same time. Prints one
JSON line; `ratio` is the mean of `both` behind the last interaction against the goal (style .8 with on-topic .9).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
import yaml

from openclaw_rl.config import Config, PrmJudgeConfig, TrainerConfig
from openclaw_rl.runtime.home import Home, read_record

MAX_TOKENS, MAX_WORDS, TEMPERATURE = 96, 60, 0.7
AT_ONCE, EVERY = 4, 12
STEP_TIMEOUT = 600
MARKDOWN = re.compile(r"\*\*|__|`|^\s*#+\s|^\s*[-*+]\s|^\s*\d+[.)]\s|\|.*\|", re.MULTILINE)
STOP_WORDS = frozenset(re.findall(r"\w+", """
a an the is are was were be been do does did how what why when where which who whom that this these those it its of
to in on at by for from with as and or but not no we you your they their them he she i me my our us can could will
would should may might must have has had if then than so such there here when into about up out over work works made
make makes keep keeps find cause causes called known way ways one use used using also more most other many some any"""))
PRAISE = ("Thanks, that is exactly what I wanted.", "Perfect, short and clear, thank you!")
OFF_TOPIC = "That does not answer my question. Answer the question directly in one or two plain sentences."


@dataclass(frozen=True)
class Answer:
    """What came back."""

    text: str
    finished: bool


class World(Protocol):
    """Whatever can be talked to and learns."""

    async def ask(self, messages: list[dict[str, str]], *, session: str, side: bool, seed: int,
                  max_tokens: int = MAX_TOKENS, done: bool = False) -> Answer: ...

    async def learned(self, complaints: int) -> None:
        """Wait until what was said so often is in the active version."""

    async def metrics(self) -> list[dict[str, float]]:
        """Figures of every training step."""


def style_problems(answer: Answer) -> list[str]:
    """What the user dislikes about it."""
    problems = []
    if len(answer.text.split()) > MAX_WORDS:
        problems.append("long")
    if MARKDOWN.search(answer.text):
        problems.append("markdown")
    if not answer.finished:
        problems.append("unfinished")
    return problems


def content_words(text: str) -> set[str]:
    """Lower-case words that carry meaning, cut to a stem of at most 6 letters."""
    return {word[:6].rstrip("s") for word in re.findall(r"[a-z]+", text.lower())
            if len(word) > 2 and word not in STOP_WORDS}


def on_topic(prompt: str, answer: Answer) -> bool:
    """Whether it says something new about what was asked, without asking back and without going round in circles."""
    asked, said = content_words(prompt), content_words(answer.text)
    words = re.findall(r"\w+", answer.text.lower())
    fours = [tuple(words[i:i + 4]) for i in range(len(words) - 3)]
    return bool(asked & said) and len(said - asked) >= 3 and "?" not in answer.text and len(fours) == len(set(fours))


def has_terms(terms: list[str], answer: Answer) -> bool:
    """At least two of the expected words (by their beginnings)."""
    words = re.findall(r"\w+", answer.text.lower())
    return sum(any(word.startswith(term) for word in words) for term in terms) >= 2


def reply(prompt: str, answer: Answer) -> str:
    """The user's next message."""
    problems = style_problems(answer)
    if problems:
        complaint = {"long": "That is too long", "markdown": "I don't want lists or formatting",
                     "unfinished": "You did not finish"}[problems[0]]
        return f"{complaint}. Answer briefly in plain words, in one sentence."
    return OFF_TOPIC if not on_topic(prompt, answer) else PRAISE[len(answer.text) % len(PRAISE)]


async def interact(world: World, prompt: str, session: str, seed: int) -> None:
    """One question and what the user thinks of the answer. The user doesn't wait for the reply to that: one token."""
    messages = [{"role": "user", "content": prompt}]
    answer = await world.ask(messages, session=session, side=False, seed=seed)
    messages += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": reply(prompt, answer)}]
    await world.ask(messages, session=session, side=False, seed=seed, max_tokens=1, done=True)


async def evaluate(world: World, held_out: list[dict[str, Any]], seed: int) -> dict[str, Any]:
    """Scores on held-out questions, as shares of them; and words per answer."""
    answers = await asyncio.gather(*(
        world.ask([{"role": "user", "content": item["prompt"]}], session="", side=True, seed=seed * 1000 + i)
        for i, item in enumerate(held_out)))
    pairs = list(zip(held_out, answers, strict=True))
    style = [not style_problems(answer) for _, answer in pairs]
    topic = [on_topic(item["prompt"], answer) for item, answer in pairs]
    for item, answer in pairs[:3]:
        print(f"  {item['prompt']} -> {answer.text!r}", file=sys.stderr)

    def share(values: list[bool]) -> float:
        return round(sum(values) / len(values), 3)

    return {"style": share(style), "on_topic": share(topic),
            "both": share([a and b for a, b in zip(style, topic, strict=True)]),
            "terms": share([has_terms(item["terms"], answer) for item, answer in pairs]),
            "words": round(sum(len(answer.text.split()) for answer in answers) / len(answers), 1)}


async def run_seed(world: World, prompts: dict[str, Any], seed: int, interactions: int) -> dict[str, Any]:
    """Interactions and scores of one user."""
    order = [item["prompt"] for item in prompts["train"]]
    random.Random(seed).shuffle(order)
    started, curve = time.monotonic(), {}
    for count in range(0, interactions + 1, AT_ONCE):
        if count % EVERY == 0:
            curve[str(count)] = await evaluate(world, prompts["held_out"], seed)
            print(f"seed {seed}, {count} interactions, {time.monotonic() - started:.0f} s: {curve[str(count)]}",
                  file=sys.stderr)
        if count < interactions:
            await asyncio.gather(*(
                interact(world, order[i % len(order)], f"learning-{seed}-{i}", seed * 1000 + i)
                for i in range(count, count + AT_ONCE)))
            await world.learned(count + AT_ONCE)
    steps = await world.metrics()
    shown = ("seconds", "samples", "tokens", "loss", "kl", "grad_norm", "mean_ratio", "logprob_diff_mean",
             "logprob_diff_max")
    return {"seed": seed, "seconds": round(time.monotonic() - started, 1), "curve": curve,
            "steps": [{name: round(step[name], 3) for name in shown if name in step} for step in steps]}


class Mesh:
    """A running mesh, over HTTP."""

    def __init__(self, home: Home) -> None:
        from openclaw_rl.client import AsyncTrainerServiceClient

        policy, trainer = read_record(home, "policy_server"), read_record(home, "trainer")
        assert policy and trainer
        self._http = httpx.AsyncClient(base_url=policy.http_address, timeout=600)
        self._trainer = AsyncTrainerServiceClient(trainer.address)
        self._turns: list[str] = []

    async def ask(self, messages: list[dict[str, str]], *, session: str, side: bool, seed: int,
                  max_tokens: int = MAX_TOKENS, done: bool = False) -> Answer:
        headers = {"X-Turn-Type": "side" if side else "main"}
        if session:
            headers["X-Session-Id"] = session
        if done:
            headers["X-Session-Done"] = "1"
        response = await self._http.post("/v1/chat/completions", headers=headers, json={
            "model": "default", "messages": messages, "max_tokens": max_tokens, "temperature": TEMPERATURE,
            "seed": seed})
        response.raise_for_status()
        if not side and not done:
            self._turns.append(response.headers["X-OpenClaw-Turn-Id"])
        choice = response.json()["choices"][0]
        return Answer(choice["message"]["content"] or "", choice["finish_reason"] == "stop")

    async def learned(self, complaints: int) -> None:
        deadline = time.monotonic() + STEP_TIMEOUT
        while time.monotonic() < deadline:
            samples = (await self._trainer.list_samples(turn_ids=self._turns)).samples
            trained = {sample.version for sample in samples if sample.HasField("version")}
            settled = [sample for sample in samples if sample.HasField("version") or sample.reason]
            if len(settled) == len(self._turns):
                versions = (await self._trainer.list_versions()).versions
                active = max((v.manifest.version for v in versions if v.active), default=0)
                if active >= max(trained, default=0):
                    return
            await asyncio.sleep(0.25)
        raise TimeoutError(f"no version with all of {complaints} interactions within {STEP_TIMEOUT} s; "
                           "`openclaw-rl status` says what is missing")

    async def metrics(self) -> list[dict[str, float]]:
        versions = (await self._trainer.list_versions()).versions
        return [dict(v.manifest.metrics) for v in versions if v.manifest.version > 0]


def in_mesh(prompts: dict[str, Any], seed: int, interactions: int, settings: dict[str, Any]) -> dict[str, Any]:
    """One seed in a mesh of its own."""
    with tempfile.TemporaryDirectory(prefix="openclaw-learning-") as folder:
        config = {"components": {"policy_server": {"port": 0, "grpc_port": 0}, "env_server": {"port": 0},
                                 "prm_judge": {"port": 0},
                                 "trainer": {"port": 0, "min_samples": AT_ONCE, "update_interval": 30, **settings}}}
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        models = Home.default().models
        if models.exists():
            (Path(folder) / "models").symlink_to(models)
        env, command = os.environ | {"OPENCLAW_RL_HOME": folder}, str(Path(sys.executable).with_name("openclaw-rl"))
        subprocess.run([command, "local-start", "--config", str(path)], env=env, check=True, stdout=sys.stderr)
        try:
            async def run() -> dict[str, Any]:
                return await run_seed(Mesh(Home(Path(folder))), prompts, seed, interactions)

            return asyncio.run(run())
        finally:
            subprocess.run([command, "stop-all"], env=env, check=False, stdout=sys.stderr)


def in_process(prompts: dict[str, Any], seed: int, interactions: int, settings: dict[str, Any]) -> dict[str, Any]:
    """One seed with engine, judge and trainer in this process."""
    from in_process import Direct

    with tempfile.TemporaryDirectory(prefix="openclaw-learning-") as folder:
        async def run() -> dict[str, Any]:
            trainer = TrainerConfig(**{"min_samples": AT_ONCE, **settings})
            world = await Direct.start(Home.default(), Path(folder), trainer, PrmJudgeConfig())
            try:
                return await run_seed(world, prompts, seed, interactions)
            finally:
                await world.stop()

        return asyncio.run(run())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="users, one after the other")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--interactions", type=int, default=36, help=f"of each; a multiple of {EVERY}")
    parser.add_argument("--in-process", action="store_true", help="without the mesh")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the trainer")
    args = parser.parse_args()
    settings = {key: yaml.safe_load(value) for key, _, value in (item.partition("=") for item in args.set)}
    Config.model_validate({"components": {"trainer": settings}})
    prompts = yaml.safe_load((Path(__file__).parent / "prompts.yaml").read_text())
    run = in_process if args.in_process else in_mesh
    runs = [run(prompts, seed, args.interactions, settings)
            for seed in range(args.first_seed, args.first_seed + args.seeds)]
    curve = {count: {name: round(sum(r["curve"][count][name] for r in runs) / len(runs), 3)
                     for name in runs[0]["curve"][count]} for count in runs[0]["curve"]}
    last = curve[str(args.interactions)]
    print(json.dumps({"bench": "learning", "settings": settings, "in_process": args.in_process, "mean": curve,
                      "goal": {"style": 0.8, "on_topic": 0.9},
                      "ratio": round(min(last["style"] / 0.8, last["on_topic"] / 0.9), 3), "seeds": runs}))


if __name__ == "__main__":
    main()
