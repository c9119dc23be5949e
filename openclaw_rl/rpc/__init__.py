"""gRPC plumbing that all components share: servers, channels, errors, discovery."""
