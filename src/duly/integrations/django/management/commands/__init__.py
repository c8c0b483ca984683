"""`manage.py duly_worker`."""
