"""Engines: what turns prompt tokens into response tokens, behind one small interface (`base.TokenEngine`)."""
