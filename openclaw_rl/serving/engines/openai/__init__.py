"""The policy as a model behind an OpenAI-compatible API."""
