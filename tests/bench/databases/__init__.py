"""The databases measured, each with its own tools as the reference."""
