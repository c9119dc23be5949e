"""Configuration: YAML, validated, every key with a default.

An error names the file, the key, the value and what is allowed.
"""

from openclaw_rl.config.base import EMBEDDED_MODEL, ConfigError
from openclaw_rl.config.dashboard import DashboardConfig
from openclaw_rl.config.distributed import DistributedConfig
from openclaw_rl.config.environment import (
                                            EnvironmentConfig,
                                            EnvServerConfig,
                                            EpisodesConfig,
                                            McpConfig,
                                            SessionAwareness,
)
from openclaw_rl.config.judge import PrmJudgeConfig
from openclaw_rl.config.load import changed, load_config
from openclaw_rl.config.mesh import Components, Config, JournalConfig, TelemetryConfig
from openclaw_rl.config.policy import PolicyServerConfig, SglangConfig
from openclaw_rl.config.security import LimitsConfig, SecurityConfig
from openclaw_rl.config.trainer import (
                                            GateConfig,
                                            GrpoConfig,
                                            MegatronConfig,
                                            PlaybookConfig,
                                            TrainerConfig,
                                            WatchConfig,
)

__all__ = ["EMBEDDED_MODEL", "Components", "Config", "ConfigError", "DashboardConfig", "DistributedConfig",
           "EnvServerConfig", "EnvironmentConfig", "EpisodesConfig", "GateConfig", "GrpoConfig", "JournalConfig",
           "LimitsConfig", "McpConfig", "MegatronConfig", "PlaybookConfig", "PolicyServerConfig", "PrmJudgeConfig",
           "SecurityConfig", "SessionAwareness", "SglangConfig", "TelemetryConfig", "TrainerConfig", "WatchConfig",
           "changed", "load_config"]
