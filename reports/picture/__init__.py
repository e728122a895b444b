"""The picture of a run of consumers: which consumer had which message when."""
