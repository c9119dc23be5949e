"""Sandboxes by bubblewrap and Linux namespaces."""
