"""What people ask of the agent and see of it, for commands and HTTP."""
