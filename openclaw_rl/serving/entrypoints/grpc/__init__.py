"""PolicyService over gRPC."""
