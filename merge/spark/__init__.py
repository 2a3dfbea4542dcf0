"""Spark itself: sessions and their settings, the Java process, outages, safe commits on S3."""
