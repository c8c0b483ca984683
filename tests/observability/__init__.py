"""Tests of the files for Prometheus and Grafana."""
