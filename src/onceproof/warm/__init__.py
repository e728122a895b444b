"""The warm tier: many crash schedules of a pipeline given as a Python function, in one Spark session.

`tier`, `separation` and `process` run in the harness, and `session` in the child process with the session, together with `gate`,
`hooks`, `attempts` and `loading`.
"""
