"""The load of a server and of its replicas, and whether there is room for an agent."""
