"""Environment type `gui`: an X display with one application in a sandbox."""
