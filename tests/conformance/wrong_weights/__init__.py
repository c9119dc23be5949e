"""A small policy server that is right, and ones that are wrong in one thing each."""
