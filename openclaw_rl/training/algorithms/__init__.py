"""Losses, advantages and the objective, as pure functions."""
