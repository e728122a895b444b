"""The foundation: errors, timeline, waiting, registry, signals, secrets, text that is safe to show. Imports no other room."""
