"""The brokers and the tables behind consumers, one file each."""
