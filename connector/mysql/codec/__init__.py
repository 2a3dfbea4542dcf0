"""Decodes row events and result rows to Arrow. Pure."""
