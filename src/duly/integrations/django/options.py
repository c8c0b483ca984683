"""`DULY = {...}` in the settings of a Django project."""

from dataclasses import dataclass

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

NAMES = {"URL": "url", "API_KEY": "api_key", "TENANT": "tenant", "WORKER": "worker"}


@dataclass(frozen=True)
class Options:
    url: str | None = None
    api_key: str | None = None
    tenant: str = "default"
    worker: str | None = None


def read_options() -> Options:
    given = getattr(settings, "DULY", {})
    if not isinstance(given, dict):
        raise ImproperlyConfigured("the setting DULY is a dictionary")
    if unknown := given.keys() - NAMES.keys():
        known = ", ".join(NAMES)
        raise ImproperlyConfigured(f"DULY has {min(unknown)!r}; it can have {known}")
    for name, value in given.items():
        if not isinstance(value, str | None):
            raise ImproperlyConfigured(f"DULY[{name!r}] is a text")
    found = {NAMES[name]: value for name, value in given.items() if value}
    if "url" in found:
        found["url"] = found["url"].rstrip("/")
    return Options(**found)
