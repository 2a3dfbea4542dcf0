"""How connections copy and stream: by libpq's own calls, or else by psycopg2 alone."""
