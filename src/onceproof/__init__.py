"""onceproof: an exactly-once fault-tolerance test harness for PySpark streaming pipelines."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("onceproof")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"
