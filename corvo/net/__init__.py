"""The front end: HTTP in, HTTP out."""
