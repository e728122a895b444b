"""`onceproof watch`: judges a running pipeline, window by window, and changes nothing in the user's systems."""
