"""Drills: failures of a consumer group, staged with real processes and examined by the doctor."""
