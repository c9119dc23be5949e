"""Environment type `terminal`: a persistent shell in a sandbox."""
