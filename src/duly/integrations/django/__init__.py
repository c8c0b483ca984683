"""duly in Django: "duly.integrations.django" in INSTALLED_APPS, and `DULY = {...}` in the settings.

| setting | meaning |
|---|---|
| URL, API_KEY | of duly, where DULY_URL and DULY_API_KEY are not set |
| TENANT | whose tasks `submit_in_transaction` stores; "default" if not given |
| WORKER | what `manage.py duly_worker` runs: "shop.tasks:worker" |
"""

from duly.integrations.django.clients import get_client
from duly.integrations.django.submits import submit_in_transaction, submit_on_commit

__all__ = ["get_client", "submit_in_transaction", "submit_on_commit"]
