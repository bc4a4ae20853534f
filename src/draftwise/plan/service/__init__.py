"""From the time of a step to what a server serves: throughput and latencies under closed and open loads."""
