"""Environment type `swe`: a git repository with a failing test."""
