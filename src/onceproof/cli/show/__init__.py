"""The texts of the commands that start nothing: ``list``, ``plan``, ``validate``, ``explain``, ``doctor``, ``cleanup``."""
