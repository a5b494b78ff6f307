"""The state machine: what every op does to the stored state."""
