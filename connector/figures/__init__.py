"""What is measured of a running capture, and of its source."""
