"""The trainer's SQLite tables: one module and one class owns the writes of each."""
