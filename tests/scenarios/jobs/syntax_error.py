"""A job with a syntax error, as after a bad merge."""

print("starting"
