"""Plain consumers as the system under test: processes that take messages, have an effect, and acknowledge."""
