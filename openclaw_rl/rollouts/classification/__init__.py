"""Turn classes: main, side or unknown."""
