"""Training with megatron-core: a group of processes under torchrun. See README.md."""
