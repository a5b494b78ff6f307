"""One module per group of routes. A handler is a plain function of a request: it proposes an op and
returns, or answers at once; it never waits."""
