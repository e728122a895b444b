"""Fetches or builds, once, the components in the cache folder: jars, a Java compiler, toxiproxy-server, class archives."""
