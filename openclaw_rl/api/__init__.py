"""The Python API: `from openclaw_rl import PolicyClient, EnvServer, PRMJudge, Trainer`."""
