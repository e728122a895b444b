"""Planted bugs: broken sinks, jobs and settings that name beforehand what must catch them. `onceproof selftest` runs them."""
