"""When two values are equal, whatever wrote them, and which positions rise."""
