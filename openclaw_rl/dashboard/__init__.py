"""The web dashboard for operators of a mesh."""
