"""An S3-compatible object store on loopback, for checkpoints that are not local."""
