"""The other shapes of a target: Delta tables beside the one with the current rows."""
