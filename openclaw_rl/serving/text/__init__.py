"""Prompts from messages, text from tokens, tool calls from text."""
