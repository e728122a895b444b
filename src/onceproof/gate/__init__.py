"""The command `gate`: runs the scenarios that onceproof.toml lists, and compares what they cover with a committed baseline."""
