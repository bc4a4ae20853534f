"""One step of the engine: what is scheduled, what the device is given, what comes back."""
