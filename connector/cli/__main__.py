"""Runs the command as ``python -m connector.cli``."""

from connector.cli import main

main()
