"""Authentication and authorization: TLS certificates, roles, and bearer keys."""
