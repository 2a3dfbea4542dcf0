"""Reading without a merge: cuts by name, SQL over tables by name, and the data source of changes."""
