"""Pure functions from the JSON of the control API to lines of text."""
