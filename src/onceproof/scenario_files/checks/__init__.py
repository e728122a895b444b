"""What can be wrong with a scenario although each value is fine alone, and what is likely wrong with it."""
