"""An index of runs and qualifications in the browser, served on loopback."""
