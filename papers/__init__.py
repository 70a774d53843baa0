"""Commands that make the tables and figures of three papers; see README.md. Not installed."""
