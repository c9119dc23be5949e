"""OpenClaw-RL: an agent that learns from being used, without ever stopping."""
