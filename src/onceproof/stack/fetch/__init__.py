"""What is fetched or built once and kept in the cache folder: jars, a Java compiler, toxiproxy-server, class archives."""
