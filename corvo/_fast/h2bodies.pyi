from corvo._fast.h2control import Control

class Bodies(Control):
    """The part of a connection that takes DATA."""
