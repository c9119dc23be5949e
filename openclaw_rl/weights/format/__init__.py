"""The bytes of a policy version: safetensors layout, encodings, digests and deltas."""
