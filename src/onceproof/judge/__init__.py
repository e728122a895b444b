"""From history and oracle to findings, from findings and claim to a verdict. Never touches a live service."""
