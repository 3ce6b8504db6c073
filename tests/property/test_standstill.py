"""What is remembered of a model that nothing can be done for is what would be found by thinking about it again."""

from typing import Any

import pytest
from hypothesis import settings

from scheduler.domain.ids import ModelName
from scheduler.orchestrator.standstill import Standstill
from scheduler.orchestrator.view import target
from scheduler.planner.evict import NotNow, evict
from tests.property.test_reducer_machine import Anything

_RECALL = Standstill.recall


def recall_and_think(still: Standstill, model: ModelName) -> NotNow | None:
    """The remembered answer, compared with a fresh one."""
    answer = _RECALL(still, model)
    if answer is not None:
        found = evict(still.scene.picture(model), target(still.scene.state, model))
        assert isinstance(found, NotNow), f"{model} is said to be stuck ({answer.reason.text}), but {found}"
        assert found.reason.code is answer.reason.code
        assert (found.retry_at_s is None) == (answer.retry_at_s is None)
        if found.retry_at_s is not None and answer.retry_at_s is not None:
            assert answer.retry_at_s <= found.retry_at_s + 1e-6, "its alarm would ring too late"
    return answer


class Remembering(Anything):
    """Anything at all happens, and every answer is checked."""

    def __init__(self) -> None:
        super().__init__()
        Standstill.recall = recall_and_think  # type: ignore[method-assign, assignment]

    def teardown(self) -> None:
        """Everything comes to rest, as it was."""
        try:
            super().teardown()
        finally:
            Standstill.recall = _RECALL  # type: ignore[method-assign]


TestRemembering: Any = pytest.mark.timeout(240)(Remembering.TestCase)
TestRemembering.settings = settings(max_examples=40, stateful_step_count=30)
