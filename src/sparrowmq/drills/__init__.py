"""Drills: failures of a consumer group, staged with real processes and diagnosed."""
