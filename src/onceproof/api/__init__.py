"""The functions of the Python API, which the command line and the pytest plugin call too."""
