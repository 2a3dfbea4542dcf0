"""What the agent and Spark share on disk: paths, files, manifests, requests, the lease."""
