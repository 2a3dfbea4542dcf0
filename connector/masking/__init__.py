"""Masks and leaves out columns before anything lands, for the tables that ask for it."""
