"""Tuning problems whose truth is known: ``catalog`` names them, ``family`` says what each one promises."""
