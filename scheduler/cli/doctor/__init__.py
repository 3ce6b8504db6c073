"""The checks of `hotseat doctor`."""
