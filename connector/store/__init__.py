"""Object stores: the interface, a folder, S3."""
