"""One HTML file about a run or a qualification: self-contained, readable offline, without scripts, and on any screen."""
