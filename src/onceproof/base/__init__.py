"""The foundation: errors, the timeline, waiting, the registry, signals, text that is safe to show. Imports no other room."""
