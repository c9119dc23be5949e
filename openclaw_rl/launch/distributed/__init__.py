"""distributed-start: each component on the host that the configuration names. See README.md."""
