"""SQLite files of the components: opening, migration, recovery, outbox, inbox and quarantine."""
