"""The Python client and worker, over HTTP. Nothing of the server is imported here."""
