"""The durable log of what was shown and what was clicked, in SQLite or PostgreSQL."""
