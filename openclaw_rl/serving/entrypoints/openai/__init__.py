"""OpenAI's HTTP API in front of a policy. Knows the policy only by `port`."""
