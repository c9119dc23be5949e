"""The judges that ship with the package, and the registry of plug-ins."""
