"""Checks of a scenario whose values are each valid: errors between values, and warnings of likely mistakes."""
