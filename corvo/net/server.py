"""The socket shell of the HTTP front end."""
