from corvo._fast.http2.control import Control

class Bodies(Control):
    """The part of a connection that takes DATA."""
