"""Learns from judged turns and publishes policy versions."""
