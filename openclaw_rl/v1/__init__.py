"""Generated from protos/openclaw_rl/v1 by tools/generate (grpcio-tools 1.81.1). Do not edit."""
