"""Parts that the tests of the SDK share."""
