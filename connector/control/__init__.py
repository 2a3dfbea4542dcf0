"""What people ask of the agent and see of it, for the commands."""
