"""The picture of a run of consumers: who had which message when."""
