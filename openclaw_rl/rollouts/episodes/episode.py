"""One episode, from its lease to its outcome."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc

from openclaw_rl.config.environment import EpisodesConfig
from openclaw_rl.rollouts.environments.interface import StepResult
from openclaw_rl.rollouts.episodes import prompts
from openclaw_rl.rollouts.episodes.policy_client import Answer, PolicyCaller
from openclaw_rl.rollouts.episodes.task_draw import EpisodePlan, derive_seed
from openclaw_rl.rollouts.leases.pool import LeasePool
from openclaw_rl.rollouts.tasks.task import Action
from openclaw_rl.rollouts.tracking import episode_table
from openclaw_rl.rollouts.tracking.tracker import SessionTracker
from openclaw_rl.rpc.errors import MeshError, failed_precondition
from openclaw_rl.rpc.messages import new_id, to_timestamp
from openclaw_rl.storage.database import Database
from openclaw_rl.v1 import environment_pb2 as pb
from openclaw_rl.v1 import policy_pb2, turn_pb2

logger = logging.getLogger(__name__)

#: Seconds to wait for a sandbox that can't be made just now.
_MAKING_SECONDS = 60.0
#: Characters of an observation in a run's events.
_OBSERVATION_CHARS = 2000

#: Receives each start, step and end: what happened, the episode, the action and the observation after it.
EventSink = Callable[["pb.EpisodeEventKind.ValueType", pb.Episode, str, str], None]


@dataclass(frozen=True, slots=True)
class RunContext:
    """Shared by all episodes of a run."""

    run: str
    type: str
    pool: LeasePool
    tracker: SessionTracker
    store: Database
    policy: PolicyCaller
    settings: EpisodesConfig
    max_steps: int  #: 0: the task's, else the configuration's
    sampling: turn_pb2.SamplingParams
    emit: EventSink
    cancelled: Callable[[], str]  #: reason for episodes that are cancelled

    @property
    def forced(self) -> bool:
        """Whether each response must be one call."""
        return self.settings.tool_choice == "required"


class EpisodeDriver:
    """Drives one episode, from its lease to its outcome. `run` it once."""

    def __init__(self, context: RunContext, plan: EpisodePlan) -> None:
        self._context, self._plan = context, plan
        self.episode = pb.Episode(
            episode_id=new_id("ep_"), run_id=context.run, group_id=plan.group, type=context.type, task_id=plan.task.id,
            session_id=new_id("ses_"), no_train=plan.no_train)
        self._lease = new_id("lease_")
        self._number = 0  # of the last action
        self._detail = ""

    async def run(self) -> None:
        """Run the episode. A failure ends it with an error and is not raised; a cancellation ends it too."""
        episode, context = self.episode, self._context
        error = ""
        began = time.time()
        try:
            problem = await self._acquire()
            began = time.time()
            await self._begin(began)
            if problem is not None:
                raise problem
            async with asyncio.timeout(context.settings.timeout):
                await self._act()
        except TimeoutError:
            error = (f"it took longer than {context.settings.timeout:g} s (components.env_server.episodes.timeout)"
                     f"{f'; {self._detail}' if self._detail else ''}")
        except asyncio.CancelledError:
            error = context.cancelled()
            raise
        except MeshError as failure:
            error = failure.message
        except Exception as failure:
            incident = new_id("inc_")
            logger.exception("incident %s: episode %s failed", incident, episode.episode_id)
            error = f"{type(failure).__name__}; the log of env_server has more under incident {incident}"
        finally:
            await context.pool.release(self._lease)
            if episode.HasField("started_at"):
                await self._end(error)

    async def _acquire(self) -> MeshError | None:
        """Lease a sandbox; returns the error if there is none."""
        context = self._context
        loop = asyncio.get_running_loop()
        patience, making = loop.time() + context.settings.timeout, loop.time() + _MAKING_SECONDS
        while True:
            try:
                await context.pool.acquire(context.type, self._lease, holder=context.run, wait=patience - loop.time())
            except MeshError as error:
                busy = error.code is grpc.StatusCode.RESOURCE_EXHAUSTED
                until = patience if busy else making
                if not error.retryable or loop.time() >= until:
                    return error
                await asyncio.sleep(min(error.retry_after or 1.0, max(until - loop.time(), 0.1)))
            else:
                self.episode.lease_id = self._lease
                return None

    async def _begin(self, began: float) -> None:
        episode = self.episode
        episode.started_at.CopyFrom(to_timestamp(began))
        try:
            await self._context.store.call(self._context.tracker.begin_episode, episode_table.EpisodeStart(
                episode.episode_id, episode.run_id, episode.group_id, self._plan.group_size, episode.type,
                episode.task_id, episode.session_id, episode.lease_id, episode.no_train, began))
        finally:  # also on a full disk: clients count starts and ends
            self._emit(pb.EPISODE_EVENT_KIND_STARTED)

    async def _end(self, error: str) -> None:
        """Note the end, which is written even if the task is cancelled meanwhile."""
        episode = self.episode
        if error:
            episode.ClearField("outcome")
            episode.error = error
            logger.info("episode %s of task %s was broken off: %s", episode.episode_id, episode.task_id, error)
        episode.done, ended = True, time.time()
        episode.ended_at.CopyFrom(to_timestamp(ended))
        try:
            await self._context.store.call(
                self._context.tracker.end_episode, episode.episode_id, episode_table.EpisodeEnd(
                    ended, episode.outcome if episode.HasField("outcome") else None, error, episode.detail))
        except Exception:  # a full disk: the next start of the component ends it
            logger.exception("the end of episode %s can't be written", episode.episode_id)
        finally:
            self._emit(pb.EPISODE_EVENT_KIND_ENDED)

    def _emit(self, kind: pb.EpisodeEventKind.ValueType, action: str = "", observation: str = "") -> None:
        snapshot = pb.Episode()
        snapshot.CopyFrom(self.episode)
        self._context.emit(kind, snapshot, action, observation[:_OBSERVATION_CHARS])

    async def _act(self) -> None:
        """Reset, act, evaluate.

        Raises:
            MeshError: the sandbox or the policy can't continue.
        """
        context, episode = self._context, self.episode
        renewing = asyncio.create_task(self._renew())
        try:
            opening = await context.pool.reset(self._lease, self._plan.task.id, self._plan.start_seed)
            messages, tools = prompts.opening_messages(opening, context.forced), prompts.definitions(opening.tools)
            most = context.max_steps or self._plan.task.max_steps or context.settings.max_steps
            for step in range(1, most + 1):
                try:
                    answer = await self._ask(messages, tools, step)
                except MeshError as error:
                    if error.reason != "CONTEXT_TOO_LONG":
                        raise
                    self._detail = f"the conversation became too long for the model after {step - 1} steps"
                    break
                actions, results, reward, over = await self._do(answer, prompts.submission(
                    opening.tools, answer.message.content))
                await self._record_step(results, reward)
                self._emit(pb.EPISODE_EVENT_KIND_STEP, prompts.as_json(actions),
                           "\n".join(message.content for message in results))
                if over:
                    break
                messages += [answer.message, *results]
            outcome = await context.pool.evaluate(self._lease)
        finally:
            renewing.cancel()
        episode.outcome = min(max(outcome.value, 0.0), 1.0)
        episode.detail = "; ".join(filter(None, (self._detail, outcome.detail)))

    async def _ask(self, messages: Sequence[turn_pb2.ChatMessage], tools: Sequence[turn_pb2.ToolDefinition],
                   step: int) -> Answer:
        """Ask the policy for response number `step`."""
        context, episode, plan = self._context, self.episode, self._plan
        sampling = turn_pb2.SamplingParams(temperature=context.settings.temperature,
                                           max_tokens=context.settings.max_tokens)
        sampling.MergeFrom(context.sampling)
        if plan.sampling_seed is not None:
            sampling.seed = derive_seed(plan.sampling_seed, step)
        self._detail = f"it waited for the policy's response {step}"
        forced = context.forced and bool(tools)
        answer = await context.policy.ask(policy_pb2.ChatRequest(
            messages=messages, tools=tools, tool_choice="required" if forced else "",
            parallel_tool_calls=False if forced else None, sampling=sampling, turn=turn_pb2.TurnOptions(
                session_id=episode.session_id, turn_type="side" if plan.no_train else "main", background=True,
                episode=turn_pb2.EpisodeStep(
                    episode_id=episode.episode_id, group_id=plan.group, group_size=plan.group_size, step=step,
                    type=context.type, task_id=plan.task.id))))
        self._detail = ""
        episode.steps = step
        if not episode.HasField("policy_version"):
            episode.policy_version = answer.version
        self._require(await context.store.run(
            lambda db: episode_table.answered(db, episode.episode_id, answer.turn_id, step, answer.version)))
        return answer

    async def _do(self, answer: Answer, submission: Action | None
                  ) -> tuple[list[Action], list[turn_pb2.ChatMessage], float | None, bool]:
        """Perform the calls of a response.

        Args:
            submission: the action that a response without a call stands for.

        Returns:
            The actions, the messages that answer the calls, the environment's reward, and whether the episode is over.
        """
        if not answer.message.tool_calls:
            if submission is None:
                return [], [], None, True
            done, _ = await self._step(submission)
            return [submission], [], done.reward if done else None, True
        actions: list[Action] = []
        results: list[turn_pb2.ChatMessage] = []
        rewards: list[float] = []
        over = False
        for i, call in enumerate(answer.message.tool_calls):
            if over or i >= prompts.MOST_CALLS:
                why = "the episode has ended" if over else (
                    f"at most {prompts.MOST_CALLS} calls are done of one response")
                results.append(prompts.result(call, f"error: not done: {why}"))
                continue
            try:
                action = prompts.action(call)
            except prompts.BadCall as error:
                results.append(prompts.result(call, str(error)))
                continue
            actions.append(action)
            done, text = await self._step(action)
            results.append(prompts.result(call, text))
            if done is not None:
                over = done.done
                if done.reward is not None:
                    rewards.append(done.reward)
        return actions, results, sum(rewards) if rewards else None, over

    async def _step(self, action: Action) -> tuple[StepResult | None, str]:
        """Perform an action; returns its result, None if the action is invalid, and the text for the policy."""
        self._detail = f"it waited for the sandbox to do {action.name!r}"
        try:
            done = await self._context.pool.step(self._lease, self._number + 1, action)
        except MeshError as error:
            if error.code is not grpc.StatusCode.INVALID_ARGUMENT:
                raise
            self._detail = ""
            return None, f"error: {error.message}"
        self._number += 1
        self._detail = ""
        return done, prompts.observation_text(done.observation, done.error)

    async def _record_step(self, results: Sequence[turn_pb2.ChatMessage], reward: float | None) -> None:
        self._require(await self._context.store.run(
            lambda db: episode_table.observed(db, self.episode.episode_id, results, reward)))

    def _require(self, there: bool) -> None:
        if not there:
            raise failed_precondition("FAILED_PRECONDITION", f"its session {self.episode.session_id} was forgotten")

    async def _renew(self) -> None:
        """Renew the lease while the policy generates."""
        with contextlib.suppress(MeshError):  # it has ended: the next step says why
            while True:
                await asyncio.sleep(self._context.pool.lease(self._lease).ttl / 3)
                self._context.pool.renew(self._lease)
