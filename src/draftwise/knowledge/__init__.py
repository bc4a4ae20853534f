"""What is true of which vLLM version, target family, method and metric, as data."""
