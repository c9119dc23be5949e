"""Judged samples and episode groups waiting for a step, and the batches built from them."""
