"""Validity checks of counters and gauges alone: functions over turns or live windows, whoever sent the requests."""
