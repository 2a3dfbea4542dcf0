"""The demo: an embedded database with a live writer, captured, merged and compared."""
