"""What the catalog says of tables, and which of them can't be captured exactly."""
