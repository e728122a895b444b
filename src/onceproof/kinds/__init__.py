"""Kinds of pipelines that can be run, one file each. What a kind is, says `onceproof.kinds.contract`."""
