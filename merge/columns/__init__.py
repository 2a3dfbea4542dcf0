"""What a target has of its source's columns and rows."""
