"""Draw of a run's tasks and seeds."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openclaw_rl.rollouts.tasks.task import Task
from openclaw_rl.rpc.errors import failed_precondition, invalid, not_found
from openclaw_rl.rpc.messages import new_id
from openclaw_rl.v1 import environment_pb2 as pb

#: Default number of episodes of a group.
GROUP_SIZE = 8
MOST_GROUPS, MOST_OF_A_GROUP, MOST_PARALLEL, MOST_STEPS = 10_000, 1024, 4096, 1000
#: Episodes of a run in all groups.
MOST_EPISODES = 100_000
#: A task is worth a group while its success rate is between these, and while it was tried less than this often.
_SELDOM, _MOSTLY, _LEAST_TRIES = 0.1, 0.9, 4
#: Tags of untried tasks, the easy ones first; a task without any counts as easy.
_LEVELS = ({"easy"}, {"medium", "middle"}, {"hard"})
_SPLITS = {pb.TASK_SPLIT_TRAIN: "train", pb.TASK_SPLIT_HELD_OUT: "held_out"}


@dataclass(frozen=True, slots=True)
class SuccessRate:
    """How a task's newest attempts ended."""

    tries: int
    mean: float  #: of their outcomes


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """An episode to run."""

    group: str
    group_size: int
    task: Task
    no_train: bool
    start_seed: int | None  #: of the task's randomness: the same for all of a group
    sampling_seed: int | None  #: each response's is derive_seed from it; None leaves it to the engine


def validate_request(request: pb.RunEpisodesRequest) -> None:
    """Check what can be checked of a request without its tasks.

    Raises:
        MeshError: INVALID_ARGUMENT naming the field.
    """
    for name, most in (("groups", MOST_GROUPS), ("group_size", MOST_OF_A_GROUP), ("parallel", MOST_PARALLEL),
                       ("max_steps", MOST_STEPS)):
        value = getattr(request, name)
        if not 0 <= value <= most:
            raise invalid(name, value, f"from 0 to {most}; 0 leaves it to the server")
    if len(request.run_id) > 128 or not request.run_id.isprintable():
        raise invalid("run_id", request.run_id, "at most 128 printable characters")
    sampling = request.sampling
    for name, least, highest in (("temperature", 0.0, 2.0), ("top_p", 1e-6, 1.0), ("max_tokens", 1, 2**31 - 1)):
        if sampling.HasField(name) and not least <= getattr(sampling, name) <= highest:  # type: ignore[arg-type]
            raise invalid(f"sampling.{name}", getattr(sampling, name), f"from {least:g} to {highest:g}")


def draw_episodes(request: pb.RunEpisodesRequest, tasks: Sequence[Task],
                  rates: Mapping[str, SuccessRate] | None = None, extra_groups: float = 0
                  ) -> tuple[list[EpisodePlan], list[EpisodePlan]]:
    """Draw the episodes of a run, group by group, and those in reserve.

    Groups have different tasks as long as there are enough; then all tasks come again, in another order. Where a number
    of groups is drawn to train on, those come first that the policy does now and then, and untried ones by difficulty:
    all attempts at a task that it always or never does go alike, which teaches nothing.

    Args:
        rates: of tasks that were tried, by id; None: all are alike.
        extra_groups: in reserve, as a share of those asked for; none if nothing is trained on them.

    Raises:
        MeshError: NOT_FOUND, a named task does not exist; INVALID_ARGUMENT, it can't be used, or there are too many
            episodes; FAILED_PRECONDITION, there is no usable task.
    """
    chosen = _select_tasks(request, tasks)
    groups, size = request.groups or len(chosen), request.group_size or GROUP_SIZE
    if groups * size > MOST_EPISODES:
        raise invalid("group_size", f"{groups} groups of {size}", f"at most {MOST_EPISODES} episodes in one run: "
                                                                  "fewer groups, or smaller ones")
    no_train = request.no_train or all(task.split == "held_out" for task in chosen)
    curriculum = rates if request.groups and not request.task_ids and not no_train else None
    reserve = 0 if no_train else round(groups * extra_groups)
    order = random.Random(request.seed if request.HasField("seed") else None)
    drawn: list[Task] = []
    while len(drawn) < groups + reserve:
        again = list(chosen)
        if request.groups or drawn:
            order.shuffle(again)
            if curriculum is not None:
                again.sort(key=lambda task: _rank(task, curriculum.get(task.id)))
        drawn += again[:groups + reserve - len(drawn)]
    found = []
    for number, task in enumerate(drawn):
        group = new_id("group_")
        start = derive_seed(request.seed if request.HasField("seed") else order.getrandbits(62), "start", number)
        for member in range(size):
            found.append(EpisodePlan(group, size, task, request.no_train or task.split == "held_out", start,
                              _sampling_seed(request, number, member)))
    return found[:groups * size], found[groups * size:]


def _rank(task: Task, rate: SuccessRate | None) -> int:
    """How late a task comes, the same for those that are equally worth a group."""
    if rate is None or rate.tries < _LEAST_TRIES:
        return next((rank for rank, words in enumerate(_LEVELS) if words & set(task.tags)), 0)
    return 0 if _SELDOM <= rate.mean <= _MOSTLY else len(_LEVELS)


def derive_seed(seed: int, *of: str | int) -> int:
    """Derive a seed of 62 bits for a part of what `seed` makes repeatable."""
    digest = hashlib.blake2b("/".join(map(str, (seed, *of))).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2


def _sampling_seed(request: pb.RunEpisodesRequest, group: int, member: int) -> int | None:
    if request.sampling.HasField("seed"):
        return derive_seed(request.sampling.seed, "sampling", group, member)
    return derive_seed(request.seed, "sampling", group, member) if request.HasField("seed") else None


def _select_tasks(request: pb.RunEpisodesRequest, tasks: Sequence[Task]) -> list[Task]:
    if request.task_ids:
        by_id = {task.id: task for task in tasks}
        for i, id in enumerate(request.task_ids):
            if id not in by_id:
                raise not_found("task", id, f"`openclaw-rl environments tasks {request.type}` tells those of "
                                            f"{request.type!r}")
            if by_id[id].problem:
                raise invalid(f"task_ids[{i}]", id, f"a task that can be used: {by_id[id].problem}")
        return [by_id[id] for id in dict.fromkeys(request.task_ids)]
    split = request.split
    if split == pb.TASK_SPLIT_UNSPECIFIED and not request.no_train:
        split = pb.TASK_SPLIT_TRAIN
    wanted = _SPLITS.get(split)
    chosen = [task for task in tasks if not task.problem and wanted in (None, task.split)]
    if not chosen:
        broken = sum(bool(task.problem) for task in tasks)
        raise failed_precondition("FAILED_PRECONDITION", (
            f"{request.type!r} has no {wanted.replace('_', '-') + ' ' if wanted else ''}task that can be used, of "
            f"{len(tasks)}, {broken} of them with a problem: `openclaw-rl environments tasks {request.type}`"))
    return chosen
