"""What tools/generate and tools/release are made of."""
