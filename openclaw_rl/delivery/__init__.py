"""The ring's streams: outbox on disk, window in flight, acknowledgement by id, resend, duplicate removal.

A component puts messages into an `Outbox`; a `Sender` carries them to the next component, where `receive` hands them
in batches to a handler that stores them, tells new from known by an `Inbox`, and acknowledges after the commit. Each
hop is at least once on the wire and exactly once behind the inbox.
"""
