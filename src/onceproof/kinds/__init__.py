"""The kinds of pipelines that can be run, one file each. `onceproof.kinds.contract` defines what a kind is."""
