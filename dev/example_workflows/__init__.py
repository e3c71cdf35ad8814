"""Draws the bundled workflows: :mod:`.draw` is the command."""
