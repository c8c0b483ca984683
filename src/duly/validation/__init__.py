"""Payloads against the JSON Schema of their task type, within bounds of time and memory."""
