"""What an oracle gets (the inputs, in one view), what it returns (an expectation), and what oracles that run code share."""
