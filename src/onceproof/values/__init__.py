"""Decides when two values are equal, whatever wrote them, checks that positions rise, and reads values from users' files."""
