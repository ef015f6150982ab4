"""Reading: consumers, messages, Arrow, scans and tables. Internal."""
