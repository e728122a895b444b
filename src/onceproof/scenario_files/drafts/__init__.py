"""Drafts a first scenario for a user's own job: `onceproof init`."""
