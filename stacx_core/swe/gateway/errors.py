"""What a client of the endpoint is told when its request cannot be answered."""

from __future__ import annotations

from typing import Any

from stacx_core.errors import EngineError, TeacherError


class ApiError(Exception):
    """An error object of the protocol.

    Args:
        status: Of the HTTP answer.
        message: For people.
        code: For programs; None where the protocol has none.
        param: The field of the request that is to blame.
    """

    def __init__(self, status: int, message: str, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param

    def body(self) -> dict[str, Any]:
        """The JSON object of the answer."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Something in the request that is malformed or not offered."""
    return ApiError(400, message, code, param)


def wrong_key() -> ApiError:
    """The request has no key, or another run's."""
    return ApiError(401, "the API key is missing or is not this run's", "invalid_api_key")


def unknown_model(name: object, served: str) -> ApiError:
    """A model that is not served here."""
    told = f"the model {name!r} does not exist; this endpoint serves {served!r}"
    return ApiError(404, told, "model_not_found", "model")


def unknown_session(name: str) -> ApiError:
    """A session that was never opened, or is over."""
    return ApiError(404, f"no session {name!r} is open", "session_not_found")


def turn_limit(limit: int) -> ApiError:
    """The session has had all its answers; a status that clients do not try again."""
    return ApiError(403, f"the model answers {limit} requests of a session, and no more", "turn_limit")


def too_long(length: int, limit: int) -> ApiError:
    """Messages that leave no room for an answer."""
    told = f"This model's maximum context length is {limit} tokens, and the messages have {length}"
    return bad_request(told, "messages", "context_length_exceeded")


def unavailable(error: Exception) -> ApiError:
    """The engine, the teacher or the server behind the endpoint failed."""
    away = isinstance(error, EngineError | TeacherError)
    told = f"the model cannot answer: {type(error).__name__}: {error}"
    return ApiError(503 if away else 500, told, "engine_unavailable" if away else None)
