"""What an oracle is given (the inputs, in one view) and what it returns (an expectation), and what oracles that run code share."""
