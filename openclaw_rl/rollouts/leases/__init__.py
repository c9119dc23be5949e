"""Leased environments: capacity, a fair queue, warm pools, and slots that never leak."""
