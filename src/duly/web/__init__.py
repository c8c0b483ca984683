"""The dashboard: one page, its modules and styles. No Python lives here."""
