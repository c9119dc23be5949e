"""Starting, watching and stopping the processes of a mesh."""
