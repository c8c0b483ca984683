"""Tests of what runs tasks."""
