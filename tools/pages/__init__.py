"""What `tools/generate.py` writes: each module returns the text of each file that it makes."""
