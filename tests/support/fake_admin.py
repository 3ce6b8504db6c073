"""What tests ask fake engines beside their own API: what they were asked, and to change."""

import base64
import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.support.fake_http import Connection, Request
from tests.support.fake_knobs import Speech
from tests.support.fake_life import FOREVER_S, LivingProcess

DEATH_STATUS = 9


class AdminDesk(LivingProcess):
    """``/admin/log``, ``/admin/speech`` (POST: change it), ``/admin/do?what=silent|refuse|crash|exit`` (POST)."""

    speech: Speech
    log: list[Request]

    async def is_troubled(self, request: Request, connection: Connection, document: Callable[[int, str], object]) -> bool:
        """Do to an inference request what the speech says; True = it is dealt with. ``document`` makes an error of a status and a text."""
        speech = self.speech
        if speech.die_before_first_byte:
            os._exit(DEATH_STATUS)
        if speech.cuts_before_first_byte:
            self.speech = replace(speech, cuts_before_first_byte=speech.cuts_before_first_byte - 1)
            request.outcome = "cut"
            connection.cut()
        elif speech.error_status:
            if speech.errors:
                last = speech.errors == 1
                self.speech = replace(speech, errors=speech.errors - 1, error_status=0 if last else speech.error_status)
            connection.send_json(speech.error_status, document(speech.error_status, "as told"))
        elif speech.hold:
            await connection.pause(FOREVER_S)
        else:
            return False
        return True

    async def is_broken_off(self, request: Request, connection: Connection, chunks: int) -> bool:
        """Lose a stream, or end, after so many chunks; True = it is lost."""
        if chunks == self.speech.die_after_chunks:
            await connection.writer.drain()
            os._exit(DEATH_STATUS)
        if chunks == self.speech.cut_after_chunks:
            request.outcome = "cut"
            connection.cut()
            return True
        return False

    def show_log(self, _request: Request, connection: Connection) -> None:
        """Every request so far, bodies as base64, with the moments at which it came and its answer began."""
        entries = [
            {
                "method": each.method,
                "path": each.path,
                "query": dict(each.query),
                "headers": dict(each.headers),
                "body": base64.b64encode(each.body).decode(),
                "outcome": each.outcome,
                "arrived_s": each.arrived_s,
                "answered_s": each.answered_s,
            }
            for each in self.log
        ]
        connection.send_json(200, {"requests": entries})

    def change_speech(self, request: Request, connection: Connection) -> None:
        """Talk differently from now on."""
        self.speech = replace(self.speech, **json.loads(request.body))
        connection.send_json(200, {})

    def change_behaviour(self, request: Request, connection: Connection) -> None:
        """Turn plain knobs of the behaviour from now on."""
        changes: dict[str, Any] = json.loads(request.body)
        self.life.behaviour = replace(self.life.behaviour, **changes)
        connection.send_json(200, {})

    def do(self, request: Request, connection: Connection) -> None:
        """Something happens to it."""
        what = request.query.get("what", "")
        if what == "silent":
            self.life.silent = True
        elif what == "refuse" and self.server is not None:
            self.server.close()
        elif what == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif what == "exit":
            os._exit(DEATH_STATUS)
        connection.send_json(200, {})
