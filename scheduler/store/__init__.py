"""The SQLite file: what was decided, what was done, what was measured. The only room that knows SQL."""
