"""Policy versions held by a policy server: registry, persisted state, trainer claim."""
