"""Environment type `openenv`: environments of a remote OpenEnv server."""
