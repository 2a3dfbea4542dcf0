"""The load of a server and of its replicas."""
