"""Sessions and the links between their turns."""
