"""For other people's programs: a client over HTTP. Nothing of the server is imported here."""
