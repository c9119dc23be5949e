"""A campaign against a mesh: kills at chosen moments, hostile requests, large stores; see README.md."""
