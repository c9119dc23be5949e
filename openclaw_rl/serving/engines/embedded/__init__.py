"""The embedded engine: continuous batching of a Llama-family model in PyTorch."""
