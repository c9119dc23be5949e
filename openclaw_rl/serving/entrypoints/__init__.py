"""Entrypoints of the policy server: OpenAI-compatible HTTP and gRPC."""
