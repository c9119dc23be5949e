"""The weight stream: offers, sending, receiving and staging of versions."""
