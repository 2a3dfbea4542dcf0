"""The servers that the demo and the tests start."""
