"""Tables of any database that SQLAlchemy can read, as outputs."""
