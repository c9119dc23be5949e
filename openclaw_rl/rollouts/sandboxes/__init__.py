"""Sandboxes: isolated processes with files and limits, without a network."""
