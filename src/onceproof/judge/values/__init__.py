"""When two values are equal, whatever wrote them."""
