"""Models on disk: preparing a folder, naming what is in it, reading its weights."""
