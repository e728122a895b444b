"""The command line: parses arguments, calls the other rooms, and prints results."""
