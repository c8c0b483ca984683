"""The application as Django knows it: wrong settings are refused when the program starts."""

from django.apps import AppConfig

from duly.client.server import Configured
from duly.integrations.django.options import read_options


class DulyConfig(AppConfig):  # type: ignore[misc, unused-ignore]
    name = "duly.integrations.django"
    label = "duly"
    verbose_name = "duly"

    def ready(self) -> None:
        options = read_options()
        Configured.url, Configured.api_key = options.url, options.api_key
