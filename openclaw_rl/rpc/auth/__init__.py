"""Who may call what: TLS certificates, roles, and API keys."""
