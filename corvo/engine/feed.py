"""The feed: the events of each applied entry, published to every subscriber.

Results that requests wait for and event streams read the feed; metrics, audit and webhooks can join
it. Each node publishes the entries that it applies, but not those that it replays at the start. A
subscriber that must not miss an event reads the event log. Subscribers never change state: they run
after an entry is applied and after its ops are resolved. Without subscribers no event is decoded.
"""

import logging
from collections.abc import Callable

from corvo.events import Event

logger = logging.getLogger(__name__)

Reader = Callable[[list[Event]], None]


class Feed:
    """Subscribers to the events of applied entries, in the order of their subscription."""

    def __init__(self) -> None:
        # The subscribers. Replaced, never changed in place: a reader may subscribe or unsubscribe
        # while it is called, which takes effect with the next entry.
        self.readers: tuple[Reader, ...] = ()

    def subscribe(self, reader: Reader) -> None:
        """Call `reader` once for each entry applied from now on, with its events in order; the
        list is shared by all readers and empty if the entry changed nothing."""
        self.readers = (*self.readers, reader)

    def unsubscribe(self, reader: Reader) -> None:
        """Stop calling a reader."""
        self.readers = tuple(other for other in self.readers if other != reader)

    def publish(self, events: list[Event]) -> None:
        """Give the events of one entry to all readers. An error of one is logged and does not
        affect the others."""
        for reader in self.readers:
            try:
                reader(events)
            except Exception:
                logger.exception("a subscriber of the feed failed")
