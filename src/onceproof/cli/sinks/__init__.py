"""The commands of `onceproof sinks`: what the sinks of `onceproof.sinks` have recorded."""
