"""Adapter of judged turns to texts, and construction of the playbook back end."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from openclaw_rl.config import Config, ConfigError
from openclaw_rl.models.api_calls import Budget, Names
from openclaw_rl.models.api_endpoints import policy_api, writer_api
from openclaw_rl.training.backends.interface import BackendWaits, StartPoint
from openclaw_rl.training.backends.playbook.backend import Paid, PlaybookBackend
from openclaw_rl.training.backends.playbook.evidence import Evidence, evidence
from openclaw_rl.training.backends.playbook.writer import Writer
from openclaw_rl.training.buffer.validation import validate_version
from openclaw_rl.training.tables.reasons import Drop
from openclaw_rl.v1 import turn_pb2

logger = logging.getLogger(__name__)


class PlaybookAdapter:
    """See data_adapter.DataAdapter.

    Args:
        config: of the mesh.
        environ: where the keys are.
    """

    algorithm = "playbook"
    replay = 0  # instructions stay in the playbook until they are removed
    merges = False  # each turn under an instruction tells of it

    def __init__(self, config: Config, environ: Mapping[str, str] = os.environ) -> None:
        self.problem = ""
        self._asked = False  # a step asked the writer
        self._config, self._environ = config, environ
        self._settings, policy = config.components.trainer.playbook, config.components.policy_server
        self.policy_names = Names.of("components.policy_server", policy.model, policy.api_key_env)
        self._budget = Budget(self._settings.requests_per_minute)
        self._paid = Paid()

    def open(self, folder: Path) -> None:
        """Begin to probe the writer; a problem is reported, and the next step tries again."""
        try:
            writer = self.writer()
        except ConfigError as error:
            self.problem = str(error)
            logger.error("the playbook's writer does not work: %s", error)
            return
        threading.Thread(target=self._probe, args=(writer,), name="playbook writer", daemon=True).start()

    def _probe(self, writer: Writer) -> None:
        problem = asyncio.run(writer.probe())
        if not self._asked:  # else a step knows better
            self.problem = problem
        if problem:
            logger.error("the playbook's writer does not work: %s", problem)

    def validate(self, sample: turn_pb2.Sample, newest: int | None) -> Drop | None:
        return validate_version(sample, newest)

    def example(self, sample: turn_pb2.Sample) -> Evidence:
        return evidence(sample)

    def settings(self) -> dict[str, str]:
        bounds = {name: str(getattr(self._settings, name))
                  for name in ("max_tokens", "max_entries", "min_uses", "min_score")}
        return {**bounds, "writer": self._settings.model or self._config.components.policy_server.model}

    def conflict(self, made: Mapping[str, str]) -> str | None:
        return None

    def writer(self) -> Writer:
        """Make the configured writer.

        Raises:
            ConfigError: there is no key for it.
        """
        api, settings = writer_api(self._config, self._environ), self._settings
        names = self.policy_names if settings.model is None else Names.of(
            "components.trainer.playbook", api.model, settings.api_key_env)
        return Writer(api, names, self._budget)

    def backend(self, start: StartPoint, lineage: Callable[[int], list[int]],
                next_version: Callable[[], int]) -> PlaybookBackend:
        """See PlaybookBackend.

        Raises:
            BackendWaits: a key is missing.
        """
        try:
            writer, policy = self.writer(), policy_api(self._config.components.policy_server, self._environ)
        except ConfigError as error:
            raise BackendWaits(str(error)) from None
        same = writer.api == policy
        return PlaybookBackend(self._settings, start, writer, policy, self.policy_names,
                               self._budget if same else Budget(None), lineage, next_version, self._tell, self._paid)

    def _tell(self, problem: str) -> None:
        self._asked, self.problem = True, problem
