"""Tasks: a goal in words, how to begin, and how to tell that it is done. Files that people read and write."""
