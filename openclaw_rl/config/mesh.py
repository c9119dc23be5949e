"""Settings of the whole mesh."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from openclaw_rl.config.base import Float, Int, Section, Size
from openclaw_rl.config.dashboard import DashboardConfig
from openclaw_rl.config.distributed import DistributedConfig
from openclaw_rl.config.environment import EnvServerConfig, SessionAwareness
from openclaw_rl.config.judge import PrmJudgeConfig
from openclaw_rl.config.policy import PolicyServerConfig
from openclaw_rl.config.security import SecurityConfig
from openclaw_rl.config.trainer import TrainerConfig


class Components(Section):
    """The four."""

    policy_server: PolicyServerConfig = PolicyServerConfig()
    env_server: EnvServerConfig = EnvServerConfig()
    prm_judge: PrmJudgeConfig = PrmJudgeConfig()
    trainer: TrainerConfig = TrainerConfig()

    def addresses(self) -> dict[str, str]:
        """HOST:PORT by component, of those that run elsewhere or are of another make."""
        return {name: section.address for name in type(self).model_fields if (section := getattr(self, name)).address}

    @model_validator(mode="after")
    def _groups_outlast_episodes(self) -> Components:
        waits, lasts = self.trainer.grpo.group_timeout, self.env_server.episodes.timeout
        if waits < lasts:
            raise ValueError(f"`trainer.grpo.group_timeout` is {waits:g} and must be at least "
                             f"`env_server.episodes.timeout`, {lasts:g}: a group may be without a word for as long as "
                             "an episode lasts")
        return self


class JournalConfig(Section):
    """Human-readable trace of events, logs/rl_trace_YYYYMMDD.log."""

    enabled: bool = True
    """false: nothing is written."""
    max_size: Size = 100 * 2**20
    """Size at which a file is rotated."""
    keep_files: Int = Field(10, ge=1)
    """Number of rotated files kept."""


class TelemetryConfig(Section):
    """Traces and metrics by OpenTelemetry."""

    enabled: bool = True
    """false: record no spans, as does the variable OTEL_SDK_DISABLED."""
    endpoint: str | None = None
    """OTLP endpoint of a collector, such as http://127.0.0.1:4317; default: from the OTEL_EXPORTER_OTLP_* variables,
    else none. Spans are also kept in the home folder for `openclaw-rl trace`."""
    protocol: Literal["grpc", "http/protobuf"] = "grpc"
    """Protocol of the endpoint; OTEL_EXPORTER_OTLP_PROTOCOL takes precedence."""
    capture_content: bool = False
    """Include message texts in spans."""
    keep_spans: Int = Field(200_000, ge=1000)
    """Number of latest spans that each component keeps in the home folder."""
    metrics_interval: Float = Field(15, gt=0)
    """Interval in seconds of the export of metrics to the collector."""


class Config(Section):
    """Configuration of a mesh."""

    mode: Literal["local", "local_simulate", "distributed"] = "local"
    """`local` and its alias `local_simulate`: all components on this machine; `distributed`: each on the host named by
    its `host`, started by `distributed-start`."""
    mesh_id: str | None = Field(None, pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")
    """Id of the mesh, by which components refuse those of another one; set it where they have several home folders and
    no certificates. Default: that of the certificates, else one made in the home folder; `openclaw-rl mesh id`
    prints it. The variable OPENCLAW_RL_MESH takes precedence."""
    session_awareness: SessionAwareness = SessionAwareness()
    components: Components = Components()
    journal: JournalConfig = JournalConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    security: SecurityConfig = SecurityConfig()
    dashboard: DashboardConfig = DashboardConfig()
    distributed: DistributedConfig = DistributedConfig()
    durability: Literal["group", "strict"] = "group"
    """Durability of acknowledged messages. group: survives a killed process and loses at most the last 100 ms on a
    power loss; strict: loses nothing, but waits for the disk."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Minimum level of the components' logs."""
