"""Episodes, rules judge and trainer in one process, for the benchmark of agents: the parts are those of the mesh, only
the gRPC hops between them are left out."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from openclaw_rl.config import EMBEDDED_MODEL, PrmJudgeConfig, TrainerConfig
from openclaw_rl.config.environment import EnvServerConfig
from openclaw_rl.models.prepare import ensure_model
from openclaw_rl.reward.judges.plugins import load_judge
from openclaw_rl.reward.panel import conclude
from openclaw_rl.rollouts.environments.factory import configured_environments
from openclaw_rl.rollouts.environments.interface import (
    BadAction,
    EnvironmentType,
    Observation,
    Opening,
    StepResult,
    Tool,
)
from openclaw_rl.rollouts.episodes import prompts
from openclaw_rl.rollouts.tasks.load import load
from openclaw_rl.rollouts.tasks.task import Action, Task
from openclaw_rl.rpc.messages import new_id
from openclaw_rl.runtime.home import Home
from openclaw_rl.serving.engines.embedded.engine import EmbeddedEngine
from openclaw_rl.serving.interfaces import ChatCall, End
from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.serving.token_policy import TokenPolicy, Transcript
from openclaw_rl.training.learner import Learner, Skipped
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.v1 import turn_pb2, weights_pb2

#: Seconds of an action.
SECONDS = 10.0


@dataclass(slots=True)
class Played:
    """An episode that has ended."""

    kind: str
    task: str
    outcome: float = 0.0
    turns: list[turn_pb2.Turn] = field(default_factory=list)
    results: list[list[turn_pb2.ChatMessage]] = field(default_factory=list)  #: of each turn
    calls: int = 0  #: that the environment took
    error: str = ""  #: why it was broken off


#: Goals with their commands, before the goal in a terminal: a model of this size knows few commands by itself.
EXAMPLES = {"terminal": [("Make a folder named photos.", "run", {"command": "mkdir photos"}),
                         ("Make a file named note.md with the text good day.", "run",
                          {"command": "echo good day > note.md"})]}


def prompt(opening: Opening, kind: str) -> tuple[list[turn_pb2.ChatMessage], list[Tool]]:
    """What the model reads first, and the functions that it is offered: those that act. Ending an episode is left to
    `max_steps`, since each response must be a call, and a model that guesses would end half of them at once."""
    tools = [tool for tool in opening.tools if tool.name != prompts.SUBMIT] or list(opening.tools)
    asked = prompts.opening_messages(replace(opening, observation=Observation({}), tools=tools), forms=True)
    shown: list[turn_pb2.ChatMessage] = []
    for number, (goal, name, arguments) in enumerate(EXAMPLES.get(kind, ())):
        call = turn_pb2.ToolCall(id=f"example_{number}", name=name, arguments_json=json.dumps(arguments))
        shown += [*prompts.opening_messages(Opening(Observation({}), goal, tools=tools), forms=True),
                  turn_pb2.ChatMessage(role="assistant", tool_calls=[call]), prompts.result(call, "[exit code: 0]")]
    return [*asked[:-1], *shown, asked[-1]], tools


def tasks(kind: str, split: str, tag: str) -> list[Task]:
    """Those of a kind, a split and a tag; an empty tag takes all."""
    return [task for task in load(kind) if not task.problem and task.split == split and (not tag or tag in task.tags)]


class World:
    """Everything that an agent learns with.

    Args:
        folder: of the base model.
        home: of the sandboxes' leavings.
        root: the trainer's folder.
        trainer: its configuration.
        max_tokens: of one response.
        parallel: episodes at once.
    """

    def __init__(self, folder: Path, home: Home, root: Path, trainer: TrainerConfig, max_tokens: int,
                 parallel: int, kinds: Sequence[str]) -> None:
        self.store = TrainerStore(root / "state.db", "group", trainer)
        self._engine = EmbeddedEngine(folder, max_batch=parallel, max_context=2048)
        self._policy = TokenPolicy(self._engine, ChatTemplate(folder), max_tokens=max_tokens)
        self._judge = load_judge(PrmJudgeConfig())
        self._learner = Learner(trainer, self.store, root, lambda: folder, keep=1)
        self._kinds: dict[str, EnvironmentType] = {}
        for configured in configured_environments(EnvServerConfig(max_parallel=parallel), home):
            if configured.name in kinds:
                assert configured.environment_type is not None, configured.problem
                self._kinds[configured.name] = configured.environment_type
        self._slots = asyncio.Semaphore(parallel)
        self.choice = "required"  #: see the benchmark's docstring

    @classmethod
    async def start(cls, root: Path, trainer: TrainerConfig, max_tokens: int, parallel: int,
                    kinds: Sequence[str]) -> World:
        """Load everything."""
        home = Home(root / "home").create()
        world = cls(ensure_model(EMBEDDED_MODEL, Home.default()), home, root, trainer, max_tokens, parallel, kinds)
        for name, kind in world._kinds.items():
            if rejection := await kind.validate():
                raise SystemExit(f"{name}: {rejection}")
        await world._engine.start()
        await asyncio.to_thread(world._learner.open)
        return world

    async def stop(self) -> None:
        """End it."""
        for kind in self._kinds.values():
            await kind.close()
        await self._engine.stop()
        self._learner.release()
        self.store.close()

    async def play(self, task: Task, start_seed: int, seed: int, temperature: float, max_steps: int) -> Played:
        """One episode; what goes wrong with its sandbox is told in it."""
        played = Played(task.type_name, task.id)
        async with self._slots:
            try:
                environment = await self._kinds[task.type_name].make()
                try:
                    await self._act(environment, task, played, start_seed, random.Random(seed), temperature, max_steps)
                    played.outcome = (await environment.evaluate()).value
                finally:
                    await environment.close()
            except Exception as error:
                played.error = f"{type(error).__name__}: {error}"
        return played

    async def _act(self, environment, task: Task, played: Played, start_seed: int,  # type: ignore[no-untyped-def]
                   seeds: random.Random, temperature: float, max_steps: int) -> None:
        opening = await environment.reset(task, start_seed)
        messages, offered = prompt(opening, task.type_name)
        tools = prompts.definitions(offered)
        for _ in range(min(max_steps, task.max_steps or max_steps)):
            turn = await self._answer(messages, tools, seeds.getrandbits(48), temperature)
            results: list[turn_pb2.ChatMessage] = []
            over = not turn.response.tool_calls
            if over:
                submission = prompts.submission(opening.tools, turn.response.content)
                if submission is not None:
                    await self._step(environment, submission, played)
            for call in turn.response.tool_calls[:prompts.MOST_CALLS]:
                try:
                    done, text = await self._step(environment, prompts.action(call), played)
                except prompts.BadCall as error:
                    done, text = None, str(error)
                results.append(prompts.result(call, text))
                if done is not None and done.done:
                    over = True
                    break
            played.turns.append(turn)
            played.results.append(results)
            messages += [turn.response, *results]
            if over:
                return

    async def _step(self, environment, action: Action,  # type: ignore[no-untyped-def]
                    played: Played) -> tuple[StepResult | None, str]:
        try:
            done = await environment.step(action, SECONDS)
        except BadAction as error:
            return None, f"error: {error}"
        played.calls += 1
        return done, prompts.observation_text(done.observation, done.error)

    async def _answer(self, messages: Sequence[turn_pb2.ChatMessage], tools: Sequence[turn_pb2.ToolDefinition],
                      seed: int, temperature: float) -> turn_pb2.Turn:
        transcript = Transcript()
        sampling = self._policy.fill(turn_pb2.SamplingParams(temperature=temperature, seed=seed))
        reason = turn_pb2.FINISH_REASON_UNSPECIFIED
        async for event in self._policy.chat(ChatCall(messages=list(messages), tools=list(tools), sampling=sampling,
                                                      tool_choice=self.choice, parallel_tool_calls=False), transcript):
            if isinstance(event, End):
                reason = event.finish_reason
        return turn_pb2.Turn(
            turn_id=new_id(), turn_class=turn_pb2.TURN_CLASS_MAIN, messages=messages, tools=tools,
            response=transcript.message(), finish_reason=reason, tokens=transcript.record(), sampling=sampling,
            policy_version=transcript.version)

    async def submit(self, groups: Sequence[Sequence[Played]]) -> None:
        """Let the judge look at each step, and the trainer have them."""
        for episodes in groups:
            group = new_id("grp_")
            for played in episodes:
                await self._submit(played, group, len(episodes))

    async def _submit(self, played: Played, group: str, size: int) -> None:
        episode, session = new_id("ep_"), new_id("ses_")
        for step, (turn, results) in enumerate(zip(played.turns, played.results, strict=True), 1):
            turn.session_id = session
            turn.episode.CopyFrom(turn_pb2.EpisodeStep(episode_id=episode, group_id=group, group_size=size, step=step,
                                                       type=played.kind, task_id=played.task))
            last = step == len(played.turns)
            transition = turn_pb2.Transition(turn=turn, next_state=turn_pb2.NextState(
                kind=turn_pb2.NEXT_STATE_KIND_EPISODE_ENDED if last else turn_pb2.NEXT_STATE_KIND_CONTINUED,
                messages=results))
            if last and played.error:
                transition.outcome.CopyFrom(turn_pb2.EpisodeOutcome(error=played.error, steps=step))
            elif last:
                transition.outcome.CopyFrom(turn_pb2.EpisodeOutcome(value=played.outcome, steps=step))
            judgement = conclude(turn.turn_id, [await self._judge.vote(transition)])
            self.store.intake.accept([turn_pb2.Sample(transition=transition, judgement=judgement)])

    async def learn(self, now: float) -> list[weights_pb2.VersionManifest]:
        """Train on all groups that can teach something, and answer with what came of it.

        Args:
            now: of the trainer's clock; far ahead of it nothing is waited for.
        """
        self.store.episodes.settle(now)
        made = []
        while self.store.episodes.waiting().ready:
            manifest = await asyncio.to_thread(self._learner.train, True)
            if manifest is None:
                break
            if isinstance(manifest, Skipped):
                continue
            self._learner.tidy(set())
            await self._engine.stage(manifest.version, self._learner.versions.folder(manifest.version))
            await self._engine.activate(manifest.version)
            made.append(manifest)
        return made
