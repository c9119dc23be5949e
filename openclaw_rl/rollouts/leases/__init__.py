"""Leased environments: capacity, a fair queue, warm ones, and a slot that never leaks."""
