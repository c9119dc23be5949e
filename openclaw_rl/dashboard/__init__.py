"""The web panel on which an operator sees the four components work."""
