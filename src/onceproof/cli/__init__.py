"""The command line, one file per command. Commands parse and call; what they need is imported when they run."""
