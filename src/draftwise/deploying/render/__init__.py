"""One file for each platform: an order as the text that it takes. `setups.read` reads each of them back."""
