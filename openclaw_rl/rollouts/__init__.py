"""The environment server: keeps sessions, and finds each turn's class and next state."""
