"""`hotseat demo`: three real models share a memory budget that holds one or two of them."""

from scheduler.cli.demo.play import run

__all__ = ["run"]
