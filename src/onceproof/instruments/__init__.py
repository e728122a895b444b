"""Instruments that observe the pipeline and hold it at an exact point: the checkpoint, failpoints in sinks, the protocol proxy."""
