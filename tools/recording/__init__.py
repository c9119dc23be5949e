"""A recorded conversation: made by tools/record, drawn by `picture`."""
