"""The process a component runs in: home folder, identity, alarms, child processes."""
