"""What isolates the things that a policy does: processes with files and limits, without a network."""
