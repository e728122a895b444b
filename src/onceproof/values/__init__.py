"""When two values are equal, whatever wrote them; which positions rise; and values as a user's own files hold them."""
