"""Implementations of a training step: PyTorch, megatron-core, and the playbook of an API model."""
