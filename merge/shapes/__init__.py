"""The other shapes of a target: Delta tables that lie beside the one with the current rows."""
