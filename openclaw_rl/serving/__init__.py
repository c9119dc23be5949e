"""The policy server: answers requests, and takes new weights while it does."""
