"""The harness's side of the brokers and of the tables that consumers use, one file each."""
