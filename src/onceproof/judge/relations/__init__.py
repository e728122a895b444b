"""The tables that checkers select from: which input caused which effect, what is missing, what was written twice."""
