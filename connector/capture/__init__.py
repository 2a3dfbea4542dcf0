"""The capture loop and everything that runs in it: tables, dumps, requests, the newest manifest."""
