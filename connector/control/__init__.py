"""Requests to the agent and views of it, for commands and HTTP."""
