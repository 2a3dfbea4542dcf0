"""Decodes PostgreSQL's messages and text values to Arrow. Pure."""
