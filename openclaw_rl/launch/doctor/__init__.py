"""What can be wrong with a mesh before it is: the checks of `openclaw-rl doctor`."""
