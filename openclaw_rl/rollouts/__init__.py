"""Environment server: tracks sessions, finds each turn's class and next state, leases environments, runs episodes."""
