"""The command line: flags in, tables or JSON out. It decides nothing that the API does not."""
