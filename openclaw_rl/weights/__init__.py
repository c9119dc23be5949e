"""Policy versions on disk, and the stream that carries them from the trainer to a policy server."""
