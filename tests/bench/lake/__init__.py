"""What the lake costs: merges and verification, on landing zones made for it."""
