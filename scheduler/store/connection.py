"""The type of what units of work are given, for rooms that may not import the database library themselves."""

from sqlalchemy import Connection as Connection
