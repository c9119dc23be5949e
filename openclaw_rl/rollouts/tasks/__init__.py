"""Tasks: a goal in words, a setup and a check, in files that people read and write."""
