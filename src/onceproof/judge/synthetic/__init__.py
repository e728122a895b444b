"""Made-up runs of a right pipeline, and how a checker breaks one so that its anomaly is there."""
