"""What a browser shows: verdict cards and forms, the same on the site's playground and in `draftwise ui`."""
