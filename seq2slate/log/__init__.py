"""The durable log of impressions and clicks, in SQLite or PostgreSQL: `impression_log.open_log` opens it."""
