"""How a driver is started again after a kill: with a JVM of its own, or with the JVM of the driver before it."""
