"""Maintenance of a landing zone: removes what nobody needs, and compacts many small files into few."""
