"""Kinds of environments: what a policy may do in one, what it sees, and when a task is done."""
