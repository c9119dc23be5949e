"""Recognising conversations by their messages: pure functions and one bounded index, without any server."""
