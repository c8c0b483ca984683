"""Files for the observer of an installation: rules and alerts for Prometheus, a Grafana dashboard.
No code lives here."""

from pathlib import Path

FOLDER = Path(__file__).parent
RECORDING = FOLDER / "recording.yml"
ALERTS = FOLDER / "alerts.yml"
DASHBOARD = FOLDER / "dashboard.json"
FILES = {"alerts": ALERTS, "recording": RECORDING, "dashboard": DASHBOARD}
