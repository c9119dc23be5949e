"""Start, supervise and stop the processes of a mesh."""
