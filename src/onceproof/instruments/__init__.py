"""What observes the pipeline and holds it at an exact point: the checkpoint, failpoints in sinks, the protocol proxy."""
