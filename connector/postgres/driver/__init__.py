"""How connections copy and stream."""
