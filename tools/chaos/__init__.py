"""Break the real mesh at random, by a seed, and check from its stores that nothing was lost; see README.md."""
