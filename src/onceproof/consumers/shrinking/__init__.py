"""`onceproof shrink`: the fewest messages, consumers and faults that still show a finding."""
