"""Trainer: learns from judged turns and publishes versions of the policy."""
