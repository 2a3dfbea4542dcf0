"""What capture costs: the agent measured from outside, on a live log, a backlog, and dumps."""
