"""Environment types: the actions of a policy, what it sees, and how tasks are checked."""
