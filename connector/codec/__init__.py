"""What the decoders of both databases share: cells, columns, and segments of the log. No I/O."""
