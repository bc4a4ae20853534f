"""Pages in a browser: verdict cards and forms, the same on the site's playground and in `draftwise ui`."""
