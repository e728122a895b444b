"""Observe the pipeline and hold it at an exact point: by its checkpoint, by failpoints in sinks, by the protocol proxy."""
