"""What `hotseat serve` takes on its command line instead of from the file, under the same rules."""

from collections.abc import Sequence

from pydantic_core import PydanticCustomError

from scheduler.config.checks import objection
from scheduler.config.settings import Listen
from scheduler.config.values import listen
from scheduler.domain.errors import Invalid


def listen_flags(texts: Sequence[str]) -> tuple[Listen, ...]:
    """The addresses of ``--listen``. Raises Invalid for one that the key ``listen`` would not take either."""
    addresses: list[Listen] = []
    for text in texts:
        try:
            address = listen(text)
        except PydanticCustomError as error:
            context = error.context or {}
            raise Invalid(f"--listen: {error.message()}", fix=str(context.get("fix", ""))) from None
        wrong = objection(address, addresses)
        if wrong is not None:
            raise Invalid(f"--listen: {wrong.message}", fix=wrong.fix)
        addresses.append(address)
    return tuple(addresses)
